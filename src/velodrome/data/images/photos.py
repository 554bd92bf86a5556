"""Photographs with labels, wherever the labels come from: listed first, then decoded in parallel and kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from velodrome.data import cache
from velodrome.data.base import Fault, Faults, Progress
from velodrome.data.images.cached_set import CachedImageSet, Counted, check_room, write_arrays
from velodrome.data.split import TEST, TRAIN, VALIDATION
from velodrome.data.storage.trees import File, Tree
from velodrome.errors import BadRequest

#: How many file headers are read to find the shape of images that were not decoded yet.
_SAMPLE = 64


@dataclass(frozen=True)
class Listing:
    """Which files there are, what they show and where they belong; nothing is decoded yet."""

    tree: Tree
    files: Sequence[File]
    #: Places in `class_names`.
    labels: Sequence[int]
    #: Training, validation or test.
    parts: Sequence[int]
    class_names: Sequence[str]
    #: What is wrong with the list itself.
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    #: Classes that are named and have no file.
    empty: tuple[str, ...] = ()


@dataclass(frozen=True)
class PhotoSet(CachedImageSet):
    """Image files. Without a size of their own choice, all are brought to the size that most of them have."""

    place: str
    lister: Callable[[], Listing]
    #: Height and width, if they were chosen.
    size: tuple[int, int] | None = None
    channels: int | None = None
    options: tuple[object, ...] = field(default=())

    @property
    def source(self) -> str:
        return repr((self.place, self.size, self.channels, self.options))

    def key(self) -> str:
        return self._key(self.lister())

    def _key(self, listing: Listing) -> str:
        return cache.key_of(
            (self.size, self.channels, self.options, tuple(listing.class_names), tuple(listing.labels),
             tuple(listing.parts), listing.faults, listing.empty),
            ((file.name, file.bytes, file.stamp) for file in listing.files),
        )

    def count(self) -> Counted:
        from velodrome.data.images.decode import Look, look_at_all

        listing = self.lister()
        shape: tuple[int, int, int] | None = None
        if self.size and self.channels:
            shape = (*self.size, self.channels)
        else:
            step = max(1, len(listing.files) // _SAMPLE)
            looks = look_at_all(listing.tree, listing.files[::step], lambda done: None)
            seen = [look for look in looks if isinstance(look, Look)]
            if seen:
                height, width = self.size or _most_common([(look.height, look.width) for look in seen])
                shape = (height, width, self.channels or max(look.channels for look in seen))
        sizes = Counter(listing.parts)
        return Counted(
            (sizes[TRAIN], sizes[VALIDATION], sizes[TEST]), shape, tuple(listing.class_names),
            sum(file.bytes for file in listing.files),
        )

    def make(self, folder: Path, progress: Progress | None) -> dict[str, Any]:
        import numpy as np

        from velodrome.data.images.decode import decode_all

        listing = self.lister()
        faults = Faults()
        faults.take(listing.faults)
        for name in listing.empty:
            faults.add("classes without images", name)
        total = sum(file.bytes for file in listing.files)

        def reading(done: int) -> None:
            if progress:
                progress(done, total, f"reading {self.name}")

        def decoding(done: int) -> None:
            if progress:
                progress(done, total, f"decoding {self.name}")

        # Everything is read even if it is refused: whoever repairs the data needs all that is wrong with it.
        usable, shape = self._shape(listing, faults, reading)
        smaller = shape[0] * shape[1] > 64 * 64
        check_room(self.name, len(usable), shape,
                   "choose a smaller size, for example ?size=64x64 after the name" if smaller else "free some space")
        files = [listing.files[place] for place in usable]
        images = cache.allocate(folder / "images.npy", np.uint8, (len(usable), *shape))
        failed = decode_all(listing.tree, files, images, decoding)
        images.flush()
        for row, reason in failed.items():
            faults.add("images that cannot be read", files[row].name, reason)
        rows = [row for row in range(len(usable)) if row not in failed]
        return write_arrays(
            folder, name=self.name, labels=[listing.labels[usable[row]] for row in rows],
            parts=[listing.parts[usable[row]] for row in rows], rows=rows, shape=shape,
            class_names=listing.class_names, faults=faults, notes=listing.notes, source_bytes=total,
        )

    def _shape(
        self, listing: Listing, faults: Faults, advance: Callable[[int], None]
    ) -> tuple[list[int], tuple[int, int, int]]:
        """Places of the files worth decoding, and the shape all shall have."""
        from velodrome.data.images.decode import Look, look_at_all

        if self.size and self.channels:
            return list(range(len(listing.files))), (*self.size, self.channels)
        looks = look_at_all(listing.tree, listing.files, advance)
        seen: dict[int, Look] = {}
        for place, found in enumerate(looks):
            if isinstance(found, Look):
                seen[place] = found
            else:
                faults.add("images that cannot be read", listing.files[place].name, found)
        if not seen:
            wrong = "; ".join(map(str, faults.found()))
            raise BadRequest(f"data set {self.name!r} has no image that can be read" + (f": {wrong}" if wrong else ""))
        height, width = self.size or _most_common([(look.height, look.width) for look in seen.values()])
        channels = self.channels or max(look.channels for look in seen.values())
        for place, found in seen.items():
            name = listing.files[place].name
            if not self.size and (found.height, found.width) != (height, width):
                faults.add(
                    f"images of another size than most ({height}×{width}; add ?size={height}x{width} to the name to "
                    "ask for one)", name, f"{found.height}×{found.width}", remedy="resized",
                )
            if not self.channels and found.channels != channels:
                faults.add(
                    "grey images among colour ones (add ?channels=3 to the name to ask for colour)", name,
                    remedy="turned into colour",
                )
        return list(seen), (height, width, channels)


def _most_common(sizes: list[tuple[int, int]]) -> tuple[int, int]:
    return Counter(sizes).most_common(1)[0][0]

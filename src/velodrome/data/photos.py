"""Photographs with labels: listed first, wherever their labels come from, then decoded in parallel, once.

They are kept in the cache, and divided at each loading.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.data import cache
from velodrome.data.base import Fault, Faults, Progress, WrongData, np
from velodrome.data.examples import INPUT, TARGET
from velodrome.data.own.array_examples import ArrayExamples, StoredExamples, store
from velodrome.data.source import Description, check_disk_space, notes_of
from velodrome.data.split import TEST, TRAIN, VALIDATION, sizes_of, trainable_classes
from velodrome.data.storage.trees import File, Tree

if TYPE_CHECKING:
    from velodrome.data.pictures import Header

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

    @classmethod
    def of(cls, tree: Tree, rows: Sequence[tuple[File, str, int]], **more: Any) -> Listing:
        """The list of files, the class of each and its part."""
        names = sorted({name for _, name, _ in rows})
        numbers = {name: number for number, name in enumerate(names)}
        return cls(tree, [file for file, _, _ in rows], [numbers[name] for _, name, _ in rows],
                   [part for _, _, part in rows], names, **more)


@dataclass(frozen=True)
class PhotoSet(StoredExamples):
    """Image files. By default, all are resized to their most common size."""

    title: str = "your own data"
    licence: str = "your own"
    homepage: str = ""
    place: str = ""
    lister: Callable[[], Listing] = field(kw_only=True)
    #: Height and width, if they were chosen.
    size: tuple[int, int] | None = None
    channels: int | None = None
    options: tuple[object, ...] = field(default=())

    @property
    def source(self) -> str:
        return repr((self.place, self.size, self.channels, self.options))

    def key(self) -> str:
        listing = self.lister()
        return cache.key_of(
            (self.size, self.channels, self.options, tuple(listing.class_names), tuple(listing.labels),
             tuple(listing.parts), listing.faults, listing.empty),
            ((file.name, file.bytes, file.stamp) for file in listing.files),
        )

    def describe(self, validation: float) -> Description:
        kept = self.kept()
        about = kept.about if kept else self._listed()
        train, validated, test = sizes_of(tuple(about["parts"]), validation)
        return Description(
            name=self.name, title=self.title, licence=self.licence, homepage=self.homepage, train=train,
            validation=validated, test=test, input_shape=tuple(about["shape"]) if about["shape"] else None,
            classes=len(about["class_names"]), bytes=about["bytes"], class_names=tuple(about["class_names"]),
            notes=notes_of(about) if kept else (),
        )

    def _listed(self) -> dict[str, Any]:
        """What the metadata will say, as far as a quick look shows before anything is decoded."""
        from velodrome.data.pictures import read_headers

        listing = self.lister()
        step = max(1, len(listing.files) // _SAMPLE)
        chosen = self.size and self.channels
        headers = {} if chosen else read_headers(listing.tree, listing.files[::step], lambda done: None)[0]
        sizes = Counter(listing.parts)
        return {
            "parts": [sizes[TRAIN], sizes[VALIDATION], sizes[TEST]],
            "shape": self._form(headers.values()) if headers or chosen else None,
            "class_names": listing.class_names, "bytes": sum(file.bytes for file in listing.files),
        }

    def make(self, folder: Path, faults: Faults, progress: Progress) -> dict[str, Any]:
        from velodrome.data.pictures import decode_all

        listing = self.lister()
        faults.take(listing.faults)
        for name in listing.empty:
            faults.add("classes without images", name)
        total = sum(file.bytes for file in listing.files)

        # Everything is read even if it is refused: whoever repairs the data needs all that is wrong with it.
        usable, shape = self._shape(listing, faults, lambda done: progress(done, total, f"reading {self.name}"))
        large = shape[0] * shape[1] > 64 * 64
        check_disk_space(
            len(usable) * math.prod(shape), f"{len(usable):,} images of {shape[0]}×{shape[1]}",
            "choose a smaller size, for example ?size=64x64 after the name" if large else "free some space",
        )
        files = [listing.files[place] for place in usable]
        images = cache.allocate(folder / "input0.npy", np.uint8, (len(usable), *shape))
        failed = decode_all(
            listing.tree, files, images, lambda done: progress(done, total, f"decoding {self.name}")
        )
        images.flush()
        for row, reason in failed.items():
            faults.add("images that cannot be read", files[row].name, reason)
        rows = [row for row in range(len(usable)) if row not in failed]
        examples = self._examples(listing, usable, rows, faults)
        return {**store(folder, (INPUT,), examples), "shape": list(shape), "notes": list(listing.notes), "bytes": total}

    def _examples(
        self, listing: Listing, usable: Sequence[int], rows: Sequence[int], faults: Faults
    ) -> ArrayExamples:
        """The examples whose images are in these rows; `usable` has the places of files in the listing by row.

        Classes with too few training examples are a fault; what there is of them elsewhere is left out.
        """
        row = np.array(rows, np.int64)
        labels = np.array([listing.labels[place] for place in usable], np.int64)
        part = np.array([listing.parts[usable[place]] for place in rows], np.int8)
        trained, numbers, names = trainable_classes(labels[row], part, listing.class_names, faults)
        kept = trained[labels[row]]
        return ArrayExamples({TARGET: numbers[labels]}, row[kept], part[kept], len(names), names, frozenset({INPUT}))

    def _shape(
        self, listing: Listing, faults: Faults, advance: Callable[[int], None]
    ) -> tuple[list[int], tuple[int, int, int]]:
        """Places of the files worth decoding, and the shape all shall have."""
        from velodrome.data.pictures import read_headers

        if self.size and self.channels:
            return list(range(len(listing.files))), self._form(())
        headers, failed = read_headers(listing.tree, listing.files, advance)
        for place, reason in failed.items():
            faults.add("images that cannot be read", listing.files[place].name, reason)
        if not headers:
            raise WrongData(f"it has no image that can be read{faults.because}")
        height, width, channels = self._form(headers.values())
        for place, header in headers.items():
            name = listing.files[place].name
            if not self.size and (header.height, header.width) != (height, width):
                faults.add(
                    f"images of another size than most ({height}×{width}; add ?size={height}x{width} to the name to "
                    "ask for one)", name, f"{header.height}×{header.width}", remedy="resized",
                )
            if not self.channels and header.channels != channels:
                faults.add(
                    "grey images among colour ones (add ?channels=3 to the name to ask for colour)", name,
                    remedy="turned into colour",
                )
        return list(headers), (height, width, channels)

    def _form(self, headers: Collection[Header]) -> tuple[int, int, int]:
        """Height, width and channels of all images: by default the most common size, and colour if any has colour."""
        height, width = self.size or Counter((header.height, header.width) for header in headers).most_common(1)[0][0]
        return height, width, self.channels or max(header.channels for header in headers)

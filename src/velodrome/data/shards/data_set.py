"""A set of shards in a folder, on HDFS or S3: opened by its index, downloaded, decoded once, read at random.

`shards:URL` names one as a data set.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from velodrome.data import cache
from velodrome.data.base import BadData, Checked, DataError, Gather, NDArray, Progress, memory_budget, np, quiet
from velodrome.data.examples import ExamplePart, ExampleSet, image_part, image_set
from velodrome.data.shards.index import (
    PARTS,
    Index,
    PartName,
    ShardFile,
    check_fetched,
    drop_damaged,
    fetch,
    read_index,
)
from velodrome.data.source import Description, Source
from velodrome.data.split import DEFAULT_VALIDATION, with_split_warnings
from velodrome.data.storage.store import Store, open_store
from velodrome.errors import BadRequest

#: Share of the free memory that a data set may take, in all workers of a machine, before it is left on disk.
_MEMORY_SHARE = 0.25
#: The environment variable that sets that limit in bytes instead.
MEMORY_VARIABLE = "VELODROME_DATA_MEMORY"


@dataclass(frozen=True)
class LocalPart:
    """A part, or some files of it, decoded on this machine's disk."""

    folder: Path
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def images(self) -> NDArray[np.uint8]:
        """Images (count, height, width, channels), mapped: nothing is read before it is touched."""
        mapped: NDArray[np.uint8] = np.load(self.folder / "images.npy", mmap_mode="r", allow_pickle=False)
        return mapped

    @cached_property
    def gather(self) -> Gather[np.uint8]:
        """`gather(indices)` copies those images out without the process growing by what it has read."""
        return Gather(self.images)

    def part(self, *, in_memory: bool) -> ExamplePart:
        return image_part(np.array(self.images) if in_memory else self.images, self.labels)


@dataclass(frozen=True)
class ShardSet:
    """An index and where its files are."""

    store: Store
    index: Index
    #: Files of a set that is elsewhere are kept below.
    cache: Path = field(default_factory=lambda: cache.folder() / "shards")

    @classmethod
    def open(cls, url: str, *, check: bool = True) -> ShardSet:
        """The set at an address, with a look at the sizes of files on this machine, unless they are verified anyway."""
        store = open_store(url)
        index = read_index(store)
        if check and store.folder is not None:
            _check_sizes(store, index)
        return cls(store, index)

    def fetch(self, files: Sequence[ShardFile], progress: Progress = quiet) -> list[Path]:
        """Paths of files on this machine, brought here first if the set is elsewhere."""
        if self.store.folder is not None:
            return [self.store.folder / file.name for file in files]
        return fetch(self.store, files, self._fetched, progress)

    @property
    def _fetched(self) -> Path:
        return self.cache / self.index.key[:32]

    def local_part(
        self, part: PartName, files: Sequence[int] | None = None, progress: Progress = quiet
    ) -> LocalPart:
        """A part decoded on this machine: the whole of it in the data set's order, or only the files so numbered.

        Several processes may ask at once; one decodes, the others wait for it.
        """
        chosen = self._chosen(part, files)
        kept = cache.keep(
            self._source(part, files), self._key, lambda folder: self._decode_again(folder, chosen, progress),
            also=self._fetched if self.store.folder is None else None,
        )
        labels: Any = kept.array("labels")
        return LocalPart(kept.folder, labels)

    def _source(self, part: PartName, files: Sequence[int] | None) -> str:
        return f"{self._prefix}{part} {'all' if files is None else ','.join(map(str, files))}"

    @property
    def _key(self) -> str:
        return hashlib.sha256(f"1 {self.index.key}".encode()).hexdigest()

    def _chosen(self, part: PartName, files: Sequence[int] | None) -> tuple[ShardFile, ...]:
        every = self.index.files(part)
        if files is None:
            return every
        if not all(0 <= number < len(every) for number in files) or len(set(files)) != len(files):
            raise BadRequest(f"{self.store.url!r} has {len(every)} {part} files, and {list(files)} were asked for")
        return tuple(every[number] for number in files)

    def _decode_again(self, folder: Path, files: tuple[ShardFile, ...], progress: Progress) -> dict[str, Any]:
        """Decode; if a fetched file was damaged since, fetch it once more."""
        try:
            return self._decode(folder, files, progress)
        except DataError:
            if self.store.folder is not None or not drop_damaged(files, self._fetched):
                raise
        return self._decode(folder, files, progress)

    def _decode(self, folder: Path, files: tuple[ShardFile, ...], progress: Progress) -> dict[str, Any]:
        """Write `images.npy` and `labels.npy` from front to back; memory holds a block of each file at a time."""
        from velodrome.data.shards.records import blocks

        total = sum(file.examples for file in files)
        labels = np.empty(total, np.int64)
        header = {"descr": "|u1", "fortran_order": False, "shape": (total, *self.index.shape)}
        with (folder / "images.npy").open("wb") as out:
            np.lib.format.write_array_header_1_0(out, header)
            done = 0
            for images, some in blocks(self.fetch(files, progress), files, self.index):
                out.write(images.data)
                labels[done : done + len(some)] = some
                done += len(some)
                progress(done, total, f"decoding {self.index.name}")
        if total and (labels.min() < 0 or labels.max() >= self.index.classes):
            raise DataError(f"{self.store.url!r} holds a label outside its {self.index.classes} classes")
        np.save(folder / "labels.npy", labels)
        return {"url": self.store.url}

    def verify_kept(self) -> list[Checked]:
        """What the cache holds of this set: fetched files, and the arrays that were decoded from any of its files."""
        arrays = [checked for source in cache.sources(self._prefix) for checked in cache.verify(source)]
        return [*check_fetched(self.index.every_file, self._fetched), *arrays]

    def forget_damaged(self) -> None:
        """Remove what the cache holds and is no longer what it was, so that it is fetched or decoded again."""
        if self.store.folder is None:
            drop_damaged(self.index.every_file, self._fetched)
        for source in cache.sources(self._prefix):
            if any(checked.state != "ok" for checked in cache.verify(source)):
                cache.forget(source)

    @property
    def _prefix(self) -> str:
        return f"shards {self.store.url} "

    def splits(
        self, *, files: Sequence[int] | None = None, memory_budget: int | None = None, progress: Progress = quiet
    ) -> ExampleSet:
        """The set as training sees it: arrays in memory if all fit the budget (bytes), else mapped from disk.

        With `files`, only the training files so numbered, in increasing order, are loaded.
        """
        if not self.index.examples("train") or not self.index.examples("test"):
            missing = "train" if not self.index.examples("train") else "test"
            raise BadRequest(
                f"{self.store.url!r} has no {missing} part: write it again with --part train,validation,test"
            )
        height, width, channels = self.index.shape
        chosen = sum(file.examples for file in self._chosen("train", files))
        examples = chosen + self.index.examples("validation") + self.index.examples("test")
        fits = height * width * channels * examples <= (_budget() if memory_budget is None else memory_budget)
        validation, test = (
            self.local_part(part, progress=progress).part(in_memory=fits) for part in PARTS if part != "train"
        )
        if files is None or cache.find(self._source("train", None), self._key) is None:
            train, own = self.local_part("train", files, progress).part(in_memory=fits), files is not None
        else:
            # All of it lies decoded on this machine: nothing needs to be decoded twice.
            train, own = self._out_of_all(files, in_memory=fits), fits
        splits = image_set(
            self.index.name, train, validation, test, classes=self.index.classes, scale=self.index.scale,
            class_names=self.index.class_names, files=tuple(file.examples for file in self.index.files("train")),
            own_files=own, statistics=self.index.statistics, overlaps=self.index.overlaps,
            content=self.index.key[:16],
        )
        return with_split_warnings(splits, None)

    def _out_of_all(self, files: Sequence[int], *, in_memory: bool) -> ExamplePart:
        """Some training files, copied out of the whole part; the whole of it, mapped, where they do not fit."""
        whole = self.local_part("train")
        if not in_memory:
            return whole.part(in_memory=False)
        count = len(self.index.files("train"))
        mine = np.flatnonzero(np.isin(np.arange(len(whole)) % count, files))
        return image_part(whole.gather(mine), np.asarray(whole.labels)[mine])


def load_shards(url: str, *, memory_budget: int | None = None, progress: Progress = quiet) -> ExampleSet:
    """The set at an address: arrays in memory if they fit the budget, by default a quarter of the free memory."""
    return ShardSet.open(url).splits(memory_budget=memory_budget, progress=progress)


def _budget() -> int:
    chosen = os.environ.get(MEMORY_VARIABLE)
    if chosen is not None:
        if not chosen.isdecimal():
            raise BadRequest(f"{MEMORY_VARIABLE}={chosen!r}: give a number of bytes")
        return int(chosen)
    return memory_budget(_MEMORY_SHARE)


def _check_sizes(store: Store, index: Index) -> None:
    sizes = {file.name: file.bytes for file in store.list()}
    for file in index.every_file:
        if file.name not in sizes:
            raise DataError(f"{store.address(file.name)!r} is missing from its set: write the set again")
        if sizes[file.name] != file.bytes:
            raise DataError(
                f"{store.address(file.name)!r} has {sizes[file.name]:,} bytes, but its index says {file.bytes:,}: "
                "write the set again"
            )


@dataclass(frozen=True)
class ShardedData(Source):
    """A set of shards as a data set. Its cache is that of each part, or of some files of it: see `ShardSet`."""

    name: str
    url: str

    def _set(self) -> ShardSet:
        return ShardSet.open(self.url)

    def describe(self, validation: float) -> Description:
        index = self._set().index
        train, validated, test = (index.examples(part) for part in PARTS)
        return Description(
            name=self.name, title=f"{index.title}, in {len(index.files('train'))} {index.encoding} shards",
            licence=index.licence, homepage=index.homepage, train=train, validation=validated, test=test,
            input_shape=index.shape, classes=index.classes, bytes=index.bytes, class_names=index.class_names,
            files=len(index.files("train")),
        )

    def prepare(self, progress: Progress = quiet) -> None:
        shards = self._set()
        for part in PARTS:
            shards.local_part(part, progress=progress)

    def load(self, seed: int, validation: float) -> ExampleSet:
        return self._loaded(None, validation)

    def load_files(self, numbers: Sequence[int], validation: float) -> ExampleSet:
        return self._loaded(numbers, validation)

    def _loaded(self, numbers: Sequence[int] | None, validation: float) -> ExampleSet:
        shards = self._set()
        kept = shards.index.validation
        notes: tuple[str, ...] = ()
        if validation not in (DEFAULT_VALIDATION, kept):
            notes = (f"--validation {validation:g} is not used: the shards at {self.url!r} were divided with {kept:g}",)
        splits = shards.splits(files=numbers)
        return replace(splits, name=self.name, notes=(*splits.notes, *notes))

    def file_sizes(self) -> tuple[int, ...]:
        return tuple(file.examples for file in self._set().index.files("train"))

    def verify(self) -> Sequence[Checked]:
        """Every file of the set, compared where it is with its index, and what the cache holds of it."""
        from velodrome.data.shards.records import check_set

        shards = ShardSet.open(self.url, check=False)
        return [*check_set(shards.store, shards.index), *shards.verify_kept()]

    def forget_damaged(self) -> None:
        """Remove what is damaged in the cache. The set itself is not read: only its writer can repair it."""
        self._set().forget_damaged()

    def is_here(self) -> bool:
        return open_store(self.url).folder is not None


def _source(rest: str, bad_data: BadData) -> ShardedData:
    return ShardedData(f"shards:{rest}", rest)


SCHEMES = {"shards": _source}

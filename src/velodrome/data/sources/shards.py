"""`shards:URL`: a set of TFRecord shards in a folder, on HDFS or S3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from velodrome.data.base import BadData, Checked, Progress
from velodrome.data.shards.index import PARTS
from velodrome.data.source import Description, Source
from velodrome.data.split import DEFAULT_VALIDATION
from velodrome.data.storage.store import open_store

if TYPE_CHECKING:
    from velodrome.data.examples import ExampleSet
    from velodrome.data.shards.data_set import ShardSet


@dataclass(frozen=True)
class ShardedData(Source):
    """A set of shards as a data set. Its cache is that of each part, or of some files of it: see `ShardSet`."""

    name: str
    url: str

    def _set(self) -> ShardSet:
        from velodrome.data.shards.data_set import ShardSet

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

    def prepare(self, progress: Progress | None) -> None:
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
        from velodrome.data.shards.data_set import ShardSet
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

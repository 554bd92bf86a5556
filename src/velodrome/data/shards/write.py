"""Writes a data set as shards: files under temporary names first, the index last; an old set stays until then."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from velodrome.data.base import DataError, Progress, quiet
from velodrome.data.examples import ExamplePart, ExampleSet
from velodrome.data.pixels import measure
from velodrome.data.shards.index import (
    INDEX,
    PARTS,
    Index,
    PartName,
    ShardFile,
    file_name,
    is_ours,
    read_index,
    strays,
)
from velodrome.data.shards.records import check_encoding, to_records
from velodrome.data.source import Description
from velodrome.data.storage.store import Staged, Store, writing
from velodrome.errors import BadRequest, shown

MOST_SHARDS = 10_000
#: Bytes of images that are encoded at a time.
_BLOCK = 32 << 20


def write_shards(
    splits: ExampleSet, about: Description, store: Store, *, shards: int, encoding: str = "png",
    parts: Sequence[PartName] = PARTS, seed: int, validation: float, force: bool = False,
    progress: Progress = quiet,
) -> Index:
    """Write the parts of a data set and their index to a store, which no other process may write to; returns the index.

    Afterwards no other TFRecord file is there, because readers find a set by the ending of its files, too.
    """
    check_encoding(encoding, splits.input_shape)
    counts = {part: shard_count(splits, part, shards) for part in parts if len(_part(splits, part))}
    with store.exclusive():
        old = _old_files(store, force)
        _clear(store, old, force)
        index = _write(splits, about, store, counts, old, encoding, seed, validation, force, progress)
        for name in sorted(old):
            store.remove(name)
    return index


def _write(
    splits: ExampleSet, about: Description, store: Store, counts: dict[PartName, int], old: set[str], encoding: str,
    seed: int, validation: float, force: bool, progress: Progress,
) -> Index:
    """Write the files of a set beside those of an old one, and then the index."""
    names = _names(about.name, counts, old)
    total, done = sum(_part(splits, part).images.nbytes for part in counts), 0
    with ExitStack() as stack:
        written: dict[PartName, tuple[ShardFile, ...]] = {}
        staged: list[Staged] = []
        for part, chosen in names.items():
            making = []
            for name in chosen:
                making.append(store.stage(name))
                stack.callback(making[-1].discard)

            def advance(bytes_done: int, base: int = done, label: str = part) -> None:
                progress(base + bytes_done, total, f"{about.name}/{label}")

            written[part] = _write_part(store, _part(splits, part), chosen, making, encoding, advance)
            staged += making
            done += _part(splits, part).images.nbytes
        for each in staged:
            each.upload()
        index = Index(
            name=about.name, title=about.title, licence=about.licence, homepage=about.homepage,
            classes=splits.class_count, class_names=splits.class_names, shape=splits.input_shape,
            encoding=check_encoding(encoding, splits.input_shape),
            scale=splits.scale, seed=seed, validation=validation, parts=written,
            statistics=splits.statistics or measure(splits.train.images), overlaps=splits.overlaps,
        )
        _refuse_other(store, force)  # where there are no locks, another process may have written a set by now
        if force and not old:  # what cannot be read as an index says nothing about the files below
            store.remove(INDEX)
        for each in staged:
            each.commit()
        _publish(store, index, force)
    return index


def _publish(store: Store, index: Index, force: bool) -> None:
    """Write the index. Of two processes that write to a store without locks, the one whose index is lost withdraws."""
    text = index.as_json().encode()
    try:
        _refuse_other(store, force)
        store.write(INDEX, text)
        if store.read(INDEX, length=2 * len(text)) == text:
            return
        raise DataError(f"another process has written a set to {store.url!r} at the same time; this one is withdrawn")
    except (BadRequest, DataError):
        try:
            others = _files_of(read_index(store))
        except DataError:
            others = set()
        for name in sorted(_files_of(index) - others):
            store.remove(name)
        raise


def shard_count(splits: ExampleSet, part: PartName, shards: int) -> int:
    """Files of a part: as many as asked for training, and in proportion for the others, so that files are alike."""
    examples, train = len(_part(splits, part)), len(splits.train)
    if not 1 <= shards <= MOST_SHARDS:
        raise BadRequest(f"--shards {shards}: give a number from 1 to {MOST_SHARDS:,}")
    if shards > train:
        raise BadRequest(f"--shards {shards}: {splits.name} has {train:,} examples to train on; choose fewer files")
    return min(examples, max(1, round(shards * examples / train)), shards)


def _part(splits: ExampleSet, part: PartName) -> ExamplePart:
    return {"train": splits.train, "validation": splits.validation, "test": splits.test}[part]


def _refuse_other(store: Store, force: bool) -> None:
    if not force and store.size(INDEX) is not None:
        raise BadRequest(f"{store.url!r} holds a set of shards already: choose another place, or --force to replace it")


def _old_files(store: Store, force: bool) -> set[str]:
    """Files of the set that is replaced. Refuses to replace what was not offered."""
    _refuse_other(store, force)
    if store.size(INDEX) is None:
        return set()
    try:
        old = read_index(store)
    except DataError:
        return set()  # whatever it is, its files are not known to be ours
    return _files_of(old)


def _files_of(index: Index) -> set[str]:
    return {file.name for file in index.every_file}


def _names(name: str, counts: dict[PartName, int], old: set[str]) -> dict[PartName, list[str]]:
    """Names that the set which is replaced does not have: it stays whole until the new index is there."""
    for generation in itertools.count(1):
        names = {
            part: [file_name(name, part, k, count, generation) for k in range(count)] for part, count in counts.items()
        }
        if old.isdisjoint(itertools.chain.from_iterable(names.values())):
            break
    return names


def _clear(store: Store, old: set[str], force: bool) -> None:
    """Remove files of sets that were never finished or not removed wholly; refuse files that are not ours."""
    for name in strays(store, old):
        if not is_ours(name):
            raise BadRequest(
                f"{store.url!r} has {shown(name)!r}, which belongs to no set of shards and would be read with it: move "
                "it away, or choose another place"
            )
        if not force:
            raise BadRequest(
                f"{store.url!r} has {name!r} of an unfinished set: choose another place, or --force to remove it"
            )
        store.remove(name)


def _write_part(
    store: Store, part: ExamplePart, names: list[str], staged: list[Staged], encoding: str,
    advance: Callable[[int], None],
) -> tuple[ShardFile, ...]:
    """Distribute the examples over the files, block by block, so that a part larger than memory is read only once."""
    count = len(names)
    sums: list[Any] = [hashlib.sha256() for _ in names]
    sizes, examples = [0] * count, [0] * count
    each = max(1, part.images[:1].nbytes)
    block = max(1, _BLOCK // (each * count)) * count
    for first in range(0, len(part), block):
        images, labels = part.images[first : first + block], part.labels[first : first + block]
        for k, making in enumerate(staged):
            if k >= len(labels):
                continue
            framed = to_records(images[k::count], labels[k::count], encoding)
            with writing(store.address(names[k])), making.path.open("ab") as stream:
                stream.write(framed)
            sums[k].update(framed)
            sizes[k] += len(framed)
            examples[k] += len(labels[k::count])
            advance((first * each) + images.nbytes * (k + 1) // count)
    return tuple(
        ShardFile(name=name, examples=examples[k], bytes=sizes[k], sha256=sums[k].hexdigest())
        for k, name in enumerate(names)
    )

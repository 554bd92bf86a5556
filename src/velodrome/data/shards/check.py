"""Verifies a set of shards where it is: checksums, and whether its files hold what its index says. Changes nothing."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Literal

from velodrome import files
from velodrome.data.base import Checked, DataError
from velodrome.data.shards.index import Index, ShardFile, strays
from velodrome.data.shards.records import check_records
from velodrome.data.shards.tfrecord import read_block
from velodrome.data.storage.store import Store

_WRITE_AGAIN = "write the set again with velodrome data shard --force"
#: Records that are read at a time, and bytes of images.
_RECORDS, _BYTES = 1024, 16 << 20


def check_set(store: Store, index: Index) -> list[Checked]:
    """Every file of a set, and what lies beside them and would be read with them or was left half written."""
    every = [file for parts in index.parts.values() for file in parts]
    found = [_check_file(store, index, file) for file in every]
    for name in strays(store, (file.name for file in every)):
        found.append(_wrong(store, name, "stray", "it is not in the index, and reading *.tfrecord reads it: remove it"))
    for name in store.half_written():
        found.append(_wrong(store, name, "stray", "a process that was killed left it half written: remove it"))
    return found


def _wrong(store: Store, name: str, state: Literal["missing", "damaged", "stray"], detail: str) -> Checked:
    """A file that only whoever wrote the set can repair."""
    return Checked(store.address(name), state, detail, by_prepare=False)


def _check_file(store: Store, index: Index, file: ShardFile) -> Checked:
    size = store.size(file.name)
    if size is None:
        return _wrong(store, file.name, "missing", _WRITE_AGAIN)
    if size != file.bytes:
        return _wrong(
            store, file.name, "damaged", f"it has {size:,} bytes, and its index says {file.bytes:,}: {_WRITE_AGAIN}"
        )
    try:
        with _content(store, file.name) as stream:
            _check_records(stream, index, file)
    except DataError as error:
        return _wrong(store, file.name, "damaged", f"{error}: {_WRITE_AGAIN}")
    return Checked(store.address(file.name), "ok")


@contextmanager
def _content(store: Store, name: str) -> Iterator[IO[bytes]]:
    """A file as a stream that can be read at any place: a remote one is copied to a temporary file first."""
    if store.folder is not None:
        with files.open_regular(store.folder / name) as stream:
            yield stream
        return
    with tempfile.TemporaryFile(prefix="velodrome-") as copy:
        for data in store.chunks(name):
            copy.write(data)
        copy.seek(0)
        yield copy


def _check_records(stream: IO[bytes], index: Index, file: ShardFile) -> None:
    """Compare a file with its index: checksum, number of records, and shape and label of each."""
    count = max(1, min(_RECORDS, _BYTES // (index.shape[0] * index.shape[1] * index.shape[2])))
    digest, examples = hashlib.sha256(), 0
    while len(block := read_block(stream, count, "it")):
        digest.update(block.framed)
        examples += len(block)
        check_records(block, index.shape, index.classes, index.encoding, "it")
    if digest.hexdigest() != file.sha256:
        raise DataError("it has another checksum than its index says")
    if examples != file.examples:
        raise DataError(f"it holds {examples:,} examples, and its index says {file.examples:,}")

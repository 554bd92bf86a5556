"""The TFRecord container without TensorFlow: length, its checksum, the record, its checksum; one after the other.

Records of equal length, as raw images give them, are framed and unframed many at a time as rows of one array.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from velodrome.data.base import DataError

#: Bytes before and after a record.
HEAD, TAIL = 12, 4
#: A record that claims to be longer counts as damaged, and no memory is allocated for it.
LONGEST = 1 << 30
_LENGTH = struct.Struct("<Q")
_SUM = struct.Struct("<I")
_MASK = 0xA282EAD8
_AT_LEAST = 1 << 16

Rows = NDArray[np.uint8]


def masked(data: bytes) -> int:
    """The checksum of the format: crc32c, turned and shifted so that sums of sums do not collide."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    length = _LENGTH.pack(len(record))
    return b"".join((length, _SUM.pack(masked(length)), record, _SUM.pack(masked(record))))


def frame_all(records: Iterable[bytes]) -> bytes:
    return b"".join(map(frame, records))


def frame_rows(rows: Rows) -> bytes:
    """Records of equal length, one a row."""
    count, length = rows.shape
    framed = np.empty((count, HEAD + length + TAIL), np.uint8)
    framed[:, :HEAD] = np.frombuffer(frame(bytes(length))[:HEAD], np.uint8)
    framed[:, HEAD:-TAIL] = rows
    framed[:, -TAIL:] = _sums(np.ascontiguousarray(rows)).view(np.uint8).reshape(count, TAIL)
    return framed.tobytes()


def _sums(rows: Rows) -> NDArray[np.uint32]:
    """The masked checksum of every row."""
    count, length = rows.shape
    flat, crc = rows.tobytes(), google_crc32c.value
    sums = np.fromiter(
        (crc(flat[row * length : (row + 1) * length]) for row in range(count)), np.uint32, count
    )
    return ((sums >> 15 | sums << 17) + np.uint32(_MASK)).astype("<u4")


@dataclass(frozen=True)
class Block:
    """Some records of a file: rows of an array if all have one length, else one by one."""

    records: Rows | list[bytes]
    #: The same with their frames, as they lie in the file.
    framed: bytes

    def __len__(self) -> int:
        return len(self.records)


def read_block(stream: IO[bytes], count: int, where: str) -> Block:
    """The next records of a file, `count` or as many as are left. A damaged one is named by file and place."""
    place = stream.tell()
    head = stream.read(HEAD)
    if not head:
        return Block([], b"")
    length = _length(head, where, place)
    whole = HEAD + length + TAIL
    framed = head + stream.read(max(whole * count, _AT_LEAST) - HEAD)
    rows = _equal(framed, whole, count, where, place)
    if rows is not None:
        stream.seek(place + whole * len(rows))
        return Block(rows, framed[: whole * len(rows)])
    records: list[bytes] = []
    end = 0
    while len(records) < count:
        if len(framed) < end + HEAD:
            framed += stream.read(_AT_LEAST)
            if len(framed) == end:
                break
        length = _length(framed[end : end + HEAD], where, place + end)
        if len(framed) < end + HEAD + length + TAIL:
            framed += stream.read(max(_AT_LEAST, length + TAIL))
        last = end + HEAD + length
        record, tail = framed[end + HEAD : last], framed[last : last + TAIL]
        if len(record) < length or len(tail) < TAIL:
            raise DataError(f"{where} was cut short: its record at byte {place + end:,} is not whole")
        if _SUM.unpack(tail)[0] != masked(record):
            raise _damaged(where, place + end)
        records.append(record)
        end = last + TAIL
    stream.seek(place + end)
    return Block(records, framed[:end])


def _equal(framed: bytes, whole: int, count: int, where: str, place: int) -> Rows | None:
    """The records as rows, if the bytes hold records of just one length."""
    fitting = min(count, len(framed) // whole)
    if fitting == 0 or (fitting < count and len(framed) % whole):
        return None
    rows = np.frombuffer(framed, np.uint8, whole * fitting).reshape(fitting, whole)
    if (rows[:, :HEAD] != rows[0, :HEAD]).any():
        return None
    records = rows[:, HEAD:-TAIL]
    wrong = np.flatnonzero(_sums(records) != np.ascontiguousarray(rows[:, -TAIL:]).view("<u4")[:, 0])
    if len(wrong):
        raise _damaged(where, place + whole * int(wrong[0]))
    return records


def _length(head: bytes, where: str, place: int) -> int:
    if len(head) < HEAD:
        raise DataError(f"{where} was cut short: its record at byte {place:,} is not whole")
    length: int = _LENGTH.unpack(head[:8])[0]
    if _SUM.unpack(head[8:])[0] != masked(head[:8]) or length > LONGEST:
        raise _damaged(where, place)
    return length


def _damaged(where: str, place: int) -> DataError:
    return DataError(f"{where} is damaged or no TFRecord file: the checksum of its record at byte {place:,} is wrong")

"""`tf.train.Example` in pure Python, as Velodrome had it before protobuf: `shards.py --codec` compares the two."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = bytes | int | float
Feature: TypeAlias = Value | Sequence[Value]
Features: TypeAlias = dict[str, list[bytes] | list[int] | list[float]]

# Field numbers and wire types of the format's definition.
_FEATURES, _ENTRY, _KEY, _VALUE, _LIST = 1, 1, 1, 2, 1
_BYTES, _FLOATS, _NUMBERS = 1, 2, 3
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


class NotAnExample(Exception):
    """Bytes that are no `tf.train.Example`; the reason is the end of a sentence."""


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative number as its two's complement in 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _delimited(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | _DELIMITED]) + varint(len(data)) + data


def encode(features: Mapping[str, Feature]) -> bytes:
    """The features, in the order of their names."""
    entries = []
    for name in sorted(features):
        value = features[name]
        values = [value] if isinstance(value, bytes | int | float) else list(value)
        entry = _delimited(_KEY, name.encode()) + _delimited(_VALUE, _feature(name, values))
        entries.append(_delimited(_ENTRY, entry))
    return _delimited(_FEATURES, b"".join(entries))


def _feature(name: str, values: list[Value]) -> bytes:
    if all(isinstance(value, bytes) for value in values) and values:
        return _delimited(_BYTES, b"".join(_delimited(_LIST, value) for value in values))  # type: ignore[arg-type]
    if all(isinstance(value, int) for value in values):
        packed = b"".join(varint(value) for value in values)  # type: ignore[arg-type]
        return _delimited(_NUMBERS, _delimited(_LIST, packed) if values else b"")
    if all(isinstance(value, int | float) for value in values):
        return _delimited(_FLOATS, _delimited(_LIST, struct.pack(f"<{len(values)}f", *values)))
    raise TypeError(f"feature {name!r} mixes kinds: give bytes, whole numbers or floats")


def decode(record: bytes) -> Features:
    """Every feature as a list."""
    found: Features = {}
    for name, start, end in _entries(record):
        found[name] = _values(record, start, end)
    return found


def _entries(record: bytes) -> Iterator[tuple[str, int, int]]:
    for field, wire, start, end in _fields(record, 0, len(record)):
        if field != _FEATURES or wire != _DELIMITED:
            continue
        for inner, inner_wire, a, b in _fields(record, start, end):
            if inner != _ENTRY or inner_wire != _DELIMITED:
                continue
            name, value = "", (b, b)
            for part, part_wire, x, y in _fields(record, a, b):
                if part == _KEY and part_wire == _DELIMITED:
                    name = record[x:y].decode("utf-8", "replace")
                elif part == _VALUE and part_wire == _DELIMITED:
                    value = (x, y)
            yield name, *value


def _values(record: bytes, start: int, end: int) -> list[bytes] | list[int] | list[float]:
    for field, wire, a, b in _fields(record, start, end):
        if wire != _DELIMITED or field not in (_BYTES, _FLOATS, _NUMBERS):
            continue
        values = [(w, x, y) for inner, w, x, y in _fields(record, a, b) if inner == _LIST]
        if field == _BYTES:
            return [record[x:y] for _, x, y in values]
        if field == _FLOATS:  # packed or one by one, it is four bytes each
            if any((y - x) % 4 for _, x, y in values):
                raise NotAnExample("it holds a list of floats that is cut short")
            return [float(f) for _, x, y in values for f in struct.unpack(f"<{(y - x) // 4}f", record[x:y])]
        return [number for _, x, y in values for number in _numbers(record, x, y)]
    return []


def _numbers(record: bytes, start: int, end: int) -> Iterator[int]:
    while start < end:
        number, start = _read_varint(record, start, end)
        yield number - (1 << 64) if number >> 63 else number


def _fields(record: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Field number, wire type, and from where to where the field's content lies."""
    while start < end:
        key, start = _read_varint(record, start, end)
        wire = key & 7
        if wire == _DELIMITED:
            length, start = _read_varint(record, start, end)
        elif wire == _VARINT:
            length = _read_varint(record, start, end)[1] - start
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise NotAnExample(f"it holds a field of unknown kind {wire}")
        if length > end - start:
            raise NotAnExample("it holds a field that is cut short")
        yield key >> 3, wire, start, start + length
        start += length


def _read_varint(record: bytes, start: int, end: int) -> tuple[int, int]:
    number = shift = 0
    while start < end and shift < 70:
        byte = record[start]
        start += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (1 << 64) - 1, start
        shift += 7
    raise NotAnExample("it holds a number that is cut short")

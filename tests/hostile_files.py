"""Files that strangers may send to a model that takes pictures, and the status that each gets."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image


def picture(kind: str = "PNG", size: tuple[int, int] = (8, 8), mode: str = "L", colour: int = 200) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size, colour if mode == "L" else (colour,) * 3).save(stream, kind)
    return stream.getvalue()


def noise(kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)).save(stream, kind)
    return stream.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int, *more: bytes, depth: int = 8, colour: int = 0) -> bytes:
    """A PNG that claims this size, with hardly any data."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(more) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) \
        + chunk(b"IEND", b"")


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        made.writestr("a.txt", "hello")
    return stream.getvalue()


def bomb() -> bytes:
    """Forty-nine million real pixels in a few kilobytes."""
    rows = zlib.compress(b"\0" * (7001 * 7000), 9)
    header = struct.pack(">IIBBBBB", 7000, 7000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


#: What it is, how it is made, and the status it gets.
HOSTILE: list[tuple[str, Callable[[], bytes], int]] = [
    ("nothing", lambda: b"", 422),
    ("text", lambda: b"this is no picture", 415),
    ("html", lambda: b"<html><script>alert(1)</script></html>", 415),
    ("svg", lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', 415),
    ("pdf", lambda: b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", 415),
    ("zip", archive, 415),
    ("gzip", lambda: b"\x1f\x8b\x08\0\0\0\0\0", 415),
    ("elf", lambda: b"\x7fELF" + b"\0" * 100, 415),
    ("postscript, which Pillow would give to another program", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n", 415),
    ("tiff, which browsers do not send", lambda: picture("TIFF"), 415),
    ("png cut in the middle", lambda: noise("PNG")[:4000], 415),
    ("jpeg cut in the middle", lambda: noise("JPEG")[:900], 415),
    ("png of a header only", lambda: picture()[:33], 415),
    ("png with a wrong checksum", lambda: picture()[:20] + b"\xff\xff" + picture()[22:], 415),
    ("png that claims 2 billion pixels", lambda: png_of(50_000, 50_000), 413),
    ("png that claims 64 million pixels", lambda: png_of(8_000, 8_000), 413),
    ("49 million pixels in a few kilobytes", bomb, 413),
    ("png of no height", lambda: png_of(8, 0), 415),
    ("png with a text of 200 MB when unpacked",
     lambda: png_of(8, 8, chunk(b"zTXt", b"k\0\0" + zlib.compress(b"\0" * (200 << 20), 9))), 415),
    ("png with less data than it claims", lambda: png_of(2_000, 2_000), 415),
    ("png and zip", lambda: picture() + archive(), 415),
    ("png and html behind it", lambda: picture() + b"<html><script>alert(1)</script>", 415),
    ("png with html in its text", lambda: png_of(8, 8, chunk(b"tEXt", b"k\0<script>alert(1)</script>")), 415),
    ("jpeg and zip", lambda: noise() + archive(), 415),
    ("jpeg and html behind it", lambda: noise() + b"<script>alert(1)</script>", 415),
    ("jpeg and pdf", lambda: noise()[:2] + b"\xff\xfe\x00\x10%PDF-1.7 obj\n " + noise()[2:], 415),
    ("gif and script", lambda: b"GIF89a/*" + b"\0" * 20 + b"*/=1;<script>alert(1)</script>", 415),
    ("webp of nothing", lambda: b"RIFF\x04\0\0\0WEBP", 415),
    ("bmp that claims much", lambda: b"BM" + struct.pack("<IHHIIiiHHIIiiII", 100, 0, 0, 54, 40, 60_000, 60_000, 1, 24,
                                                         0, 0, 0, 0, 0, 0), 413),
]
GOOD: list[tuple[str, Callable[[], bytes]]] = [
    ("grey png", picture), ("colour jpeg", noise), ("gif", lambda: picture("GIF")), ("bmp", lambda: picture("BMP")),
    ("webp", lambda: picture("WEBP", mode="RGB")), ("png of other size", lambda: picture(size=(300, 20))),
    ("jpeg with a camera's preview behind it", lambda: noise() + noise()),
    ("png with padding", lambda: picture() + b"\0" * 16),
]

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


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def animated(kind: str) -> bytes:
    frames = [Image.new("RGB", (64, 64), (grey, grey, grey)) for grey in range(0, 250, 5)]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:])


def turned(orientation: int, bright: int = 0) -> bytes:
    """A wide JPEG, dark with its left half `bright`, of a camera that was held like this."""
    image, notes = Image.new("RGB", (40, 20)), Image.Exif()
    image.paste((bright,) * 3, (0, 0, 20, 20))
    notes[0x0112] = orientation
    return saved(image, "JPEG", exif=notes)


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
    ("gif that claims a screen of 4 billion pixels", lambda: b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + b"\0\0\0,"
     + struct.pack("<HHHH", 0, 0, 65_535, 65_535) + b"\0\x02\x02D\x01\0;", 413),
    ("jpeg of markers only", lambda: b"\xff\xd8\xff" + b"\xff" * 5_000, 415),
    ("webp cut at its end", lambda: noise("WEBP")[:-200], 415),
    ("icon", lambda: picture("ICO", (32, 32), "RGB"), 415),
    ("packed svg", lambda: zlib.compress(b"<svg/>"), 415),
    ("svg behind a byte order mark", lambda: b"\xef\xbb\xbf<svg>", 415),
]
GOOD: list[tuple[str, Callable[[], bytes]]] = [
    ("grey png", picture), ("colour jpeg", noise), ("gif", lambda: picture("GIF")), ("bmp", lambda: picture("BMP")),
    ("webp", lambda: picture("WEBP", mode="RGB")), ("png of other size", lambda: picture(size=(300, 20))),
    ("jpeg with a camera's preview behind it", lambda: noise() + noise()),
    ("png with padding", lambda: picture() + b"\0" * 16),
    ("cmyk jpeg", lambda: saved(Image.new("CMYK", (40, 30)), "JPEG")),
    ("png of 16 bits", lambda: saved(Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50), "PNG")),
    ("animated gif", lambda: animated("GIF")), ("animated webp", lambda: animated("WEBP")),
    ("animated png", lambda: animated("PNG")),
    ("progressive jpeg", lambda: saved(Image.new("RGB", (40, 30)), "JPEG", progressive=True)),
    ("jpeg of an unknown orientation", lambda: turned(99)), ("picture of one pixel", lambda: picture(size=(1, 1))),
]

"""A data set of the MNIST kind that the tests make: 40 + 20 images of 4×4 by default, and servers of its files."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from velodrome.data.cache import RemoteFile
from velodrome.data.sources.published import IdxDataSet

NAMES = (
    "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
)


def idx(array: np.ndarray) -> bytes:
    """The idx format, written by its definition."""
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def arrays(examples: int = 40, side: int = 4, classes: int = 5) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [
        made for many in (examples, examples // 2)
        for made in (random.integers(0, 256, (many, side, side)), np.arange(many) % classes)
    ]


def remote(name: str, payload: bytes) -> RemoteFile:
    packed = gzip.compress(payload, mtime=0)
    return RemoteFile(
        name, len(packed), hashlib.md5(packed).hexdigest(),
        len(payload), hashlib.sha256(payload).hexdigest(), zlib.crc32(payload),
    )


def data_set(
    publishers: tuple[str, ...] = (), system: Path | None = None, *, name: str = "tiny", examples: int = 40,
    side: int = 4, classes: int = 5,
) -> IdxDataSet:
    made = arrays(examples, side, classes)
    files = tuple(remote(name, idx(array)) for name, array in zip(NAMES, made, strict=True))
    return IdxDataSet(
        name=name, title=name, licence="none", homepage="", files=files,
        publishers=publishers, system=system, examples=examples, test=examples // 2, side=side,
        class_names=tuple(map(str, range(classes))),
    )


def write_mirror(folder: Path, made: IdxDataSet | None = None) -> Path:
    """The four files under `<folder>/tiny/`, or under the name of the data set; the folder again."""
    made = made or data_set()
    (folder / made.name).mkdir(parents=True)
    for name, array in zip(NAMES, arrays(made.examples, made.side, len(made.class_names)), strict=True):
        (folder / made.name / name).write_bytes(gzip.compress(idx(array), mtime=0))
    return folder


@dataclass
class Served:
    """A web server on the loopback address, what it was asked, and how it misbehaves."""

    address: str = ""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    #: How many of the coming answers break off half-way.
    breaks: int = 0
    ranges: bool = True
    status: int = 0


@contextmanager
def serve(folder: Path) -> Iterator[Served]:
    served = Served()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            served.requests.append((self.path, wanted))
            file = folder / self.path.lstrip("/")
            if served.status or not file.is_file():
                self.send_error(served.status or 404)
                return
            data, start = file.read_bytes(), 0
            if wanted and served.ranges:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(data):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            rest = data[start:]
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            if served.breaks:
                served.breaks -= 1
                rest = rest[: len(rest) // 2]
                self.close_connection = True
            self.wfile.write(rest)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)

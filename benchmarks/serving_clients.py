"""32 clients in one process: each sends a picture as a form, waits for the whole answer, and sends the next.

`python serving_clients.py` reads an address, files and seconds as JSON, and writes what it measured. It is lean because
it runs on the cores of the server that it measures.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import time
from functools import partial

CLIENTS = 32
#: Seconds of load before anything is measured: caches, the pace of the processor, and further processes that start.
WARM = 3.0
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def requests_of(files: list[bytes], address: str) -> list[bytes]:
    """Whole requests, ready to be written to a connection."""
    host, _, path = address.removeprefix("http://").partition("/")
    made = []
    for content in files:
        body = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n' \
               b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--edge--\r\n"
        head = f"POST /{path or 'api/predict'} HTTP/1.1\r\nHost: {host}\r\n" \
               f"Content-Type: multipart/form-data; boundary=edge\r\nContent-Length: {len(body)}\r\n\r\n"
        made.append(head.encode() + body)
    return made


class Client(asyncio.Protocol):
    """Sends a request, waits for the whole answer, and sends the next: as little Python as possible for each."""

    def __init__(self, wanted: list[bytes], place: int, end: float, latencies: list[float]) -> None:
        self.wanted, self.place, self.end, self.latencies = wanted, place, end, latencies
        self.errors, self.over = 0, asyncio.get_running_loop().create_future()
        self.had, self.length = b"", 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.began = time.perf_counter()
        if self.began >= self.end:
            self.transport.close()
            return
        self.place += 1
        self.transport.write(self.wanted[self.place % len(self.wanted)])

    def data_received(self, data: bytes) -> None:
        self.had = self.had + data if self.had else data
        if not self.length:
            head = self.had.find(b"\r\n\r\n")
            if head < 0:
                return
            found = LENGTH.search(self.had, 0, head + 2)
            self.length = head + 4 + int(found[1])
        if len(self.had) >= self.length:
            self.latencies.append(time.perf_counter() - self.began)
            self.errors += b" 200 " not in self.had[:16] or b'"predictions"' not in self.had
            self.had, self.length = b"", 0
            self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if time.perf_counter() < self.end:
            self.errors += 1  # the server closed it
        self.over.set_result(None)


async def load(address: str, files: list[bytes], seconds: float) -> tuple[list[float], int, float]:
    """Latencies in seconds, errors, and the time that all of it took."""
    host, port = address.removeprefix("http://").partition("/")[0].split(":")
    wanted, latencies, loop = requests_of(files, address), [], asyncio.get_running_loop()
    began = time.perf_counter()
    clients = [(await loop.create_connection(partial(Client, wanted, number, began + seconds, latencies),
                                             host, int(port)))[1] for number in range(CLIENTS)]
    await asyncio.gather(*(client.over for client in clients))
    return latencies, sum(client.errors for client in clients), time.perf_counter() - began


def main() -> None:
    given = json.load(sys.stdin)
    files = [bytes.fromhex(one) for one in given["files"]]
    loop = event_loop()
    loop.run_until_complete(load(given["address"], files, WARM))
    before = time.process_time()
    latencies, errors, seconds = loop.run_until_complete(load(given["address"], files, given["seconds"]))
    used = time.process_time() - before
    ordered = sorted(latencies)
    json.dump({
        "requests_per_second": len(ordered) / seconds, "median_ms": 1000 * statistics.median(ordered),
        "p99_ms": 1000 * ordered[int(0.99 * len(ordered))], "errors": errors,
        "client_microseconds": 1e6 * used / len(ordered),
    }, sys.stdout)


def event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop

        return uvloop.new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()


if __name__ == "__main__":
    main()

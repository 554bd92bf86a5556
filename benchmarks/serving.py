"""How many requests a model server answers: `velodrome serve`, FastAPI with PyTorch, TorchServe, ONNX Runtime alone.

32 clients on the same two cores send pictures as forms and wait for each answer. Every round runs each entry once, in
turn. `--minutes 5` instead watches the memory of `velodrome serve` for that long. Required on two idle cores: for
pictures of 28×28 pixels 1,500 requests a second with a 99th percentile under 100 ms, for photos 80 % of what ONNX
Runtime alone computes, a start within 3 s, no error, no growth of memory.

FastAPI and TorchServe are compared where they are installed: `pip install fastapi python-multipart torchserve`.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

import velodrome
from velodrome.serving.model import LoadedModel
from velodrome.serving.pictures import decoded

CLIENTS = 32
OURS, ALONE = "velodrome serve", "ONNX Runtime alone"
COMMAND = [sys.executable, "-m", "velodrome", "serve"]
#: What is compared where its module can be imported: how it is called, its script, and how it is installed.
PEERS = {
    "fastapi": ("FastAPI + PyTorch", "fastapi_torch.py", "pip install fastapi python-multipart"),
    "ts": ("TorchServe", "torchserve_torch.py", "pip install torchserve, and Java"),
}
#: Run, job, format of the pictures that are sent.
MODELS = {
    "dense-300-100": ({"dataset": "mnist", "model": "dense-300-100"}, "PNG"),
    "lenet5": ({"dataset": "mnist", "model": "lenet5"}, "PNG"),
    "fruit-cnn": ({"dataset": "fruits", "model": "fruit-cnn"}, "JPEG"),
}


@dataclass
class Figures:
    """What one entry reached in one round."""

    entry: str
    model: str
    requests_per_second: float
    median_ms: float | None = None
    p99_ms: float | None = None
    errors: int = 0
    start_seconds: float | None = None


def prepare(runs: Path, names: list[str]) -> None:
    """Train each model for a moment, and export it."""
    for name in names:
        if not (runs / name).exists():
            job = velodrome.Job(engine="torch", strategy="single", epochs=1, steps=30, **MODELS[name][0])
            velodrome.train(job, name=name, runs=runs)
        velodrome.export(name, runs)


def pictures(runs: Path, name: str) -> list[bytes]:
    """Pictures of the test set as files."""
    model = LoadedModel(runs / name / "model", name)
    found = []
    for image in model.examples["in:x"][:50]:
        stream = io.BytesIO()
        Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(stream, MODELS[name][1])
        found.append(stream.getvalue())
    return found


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


async def load(address: str, files: list[bytes], seconds: float) -> tuple[list[float], int, float]:
    """Latencies in seconds, errors, and the time that all of it took."""
    host, port = address.removeprefix("http://").partition("/")[0].split(":")
    wanted, latencies, errors = requests_of(files, address), [], 0
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection(host, int(port))
        place = number
        while (began := time.perf_counter()) < end:
            writer.write(wanted[place % len(wanted)])
            place += 1
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
            body = await reader.readexactly(length)
            latencies.append(time.perf_counter() - began)
            errors += b" 200 " not in head[:16] or b'"predictions"' not in body
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return latencies, errors, time.perf_counter() - began


class Server:
    """A server in a process of its own."""

    def __init__(self, words: list[str]) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        while True:
            line = self.process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+\S*", line)
            if found:
                break
            if not line and self.process.poll() is not None:
                raise SystemExit(f"{words[:4]} did not start")
        self.address, self.start_seconds = found[0], time.perf_counter() - began

    def memory(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def served(words: list[str], entry: str, model: str, files: list[bytes], seconds: float) -> Figures:
    server = Server(words)
    try:
        code = "import sys; sys.path.insert(0, sys.argv[1]); import serving; serving.client_main()"
        # The clients have a process of their own, as they would elsewhere.
        folder = str(Path(__file__).parent)
        given = json.dumps({"address": server.address, "seconds": seconds, "files": [one.hex() for one in files]})
        done = subprocess.run([sys.executable, "-c", code, folder], input=given, capture_output=True, text=True,
                              timeout=seconds + 60, check=True)
        found = json.loads(done.stdout)
        return Figures(entry, model, **found, start_seconds=server.start_seconds)
    finally:
        server.end()


def client_main() -> None:
    given = json.load(sys.stdin)
    files = [bytes.fromhex(one) for one in given["files"]]
    loop = _loop()
    loop.run_until_complete(load(given["address"], files, 1.0))  # caches, graphs and the pace of the processor
    latencies, errors, seconds = loop.run_until_complete(load(given["address"], files, given["seconds"]))
    ordered = sorted(latencies)
    json.dump({
        "requests_per_second": len(ordered) / seconds, "median_ms": 1000 * statistics.median(ordered),
        "p99_ms": 1000 * ordered[int(0.99 * len(ordered))], "errors": errors,
    }, sys.stdout)


def _loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop

        return uvloop.new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()


def runtime_alone(runs: Path, name: str, files: list[bytes], seconds: float, *, decode: bool) -> Figures:
    """ONNX Runtime in a loop, without a server: batches of 16, all cores; with `decode`, from the files."""
    model = LoadedModel(runs / name / "model", name)
    shape = model.image_input
    assert shape is not None
    ready = [decoded(one, shape) for one in files]
    count, place, began = 0, 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        some = [(place + step) % len(files) for step in range(16)]
        batch = [decoded(files[one], shape) for one in some] if decode else [ready[one] for one in some]
        model.scores({"x": np.stack(batch)})
        count, place = count + 16, place + 16
    rate = count / (time.perf_counter() - began)
    return Figures(ALONE + (", with decoding" if decode else ""), name, rate)


def compare(runs: Path, names: list[str], rounds: int, seconds: float) -> list[Figures]:
    found = []
    peers = {entry: script for module, (entry, script, _) in PEERS.items() if find_spec(module) is not None}
    for entry, _, install in PEERS.values():
        if entry not in peers:
            print(f"{entry} is not installed, and is not compared: {install}")
    for number in range(rounds):
        for name in names:
            files = pictures(runs, name)
            ours = [*COMMAND, name, "--runs", str(runs), "--port", "0", "--no-browser"]
            scripts, model = Path(__file__).with_name("peers_serving"), str(runs / name / "model")
            entries = [
                partial(served, ours, OURS, name, files, seconds),
                *(partial(served, [sys.executable, str(scripts / script), model], entry, name, files, seconds)
                  for entry, script in peers.items()),
                partial(runtime_alone, runs, name, files, seconds / 2, decode=False),
                partial(runtime_alone, runs, name, files, seconds / 2, decode=True),
            ]
            for entry in entries[number % 2 :] + entries[: number % 2]:
                figures = entry()
                found.append(figures)
                print(f"round {number + 1}  {name:14} {figures.entry:34} {figures.requests_per_second:8,.0f} a second"
                      + (f"  median {figures.median_ms:6.1f} ms  p99 {figures.p99_ms:6.1f} ms  errors {figures.errors}"
                         if figures.p99_ms is not None else ""), flush=True)
    return found


def summarize(name: str, found: list[Figures]) -> None:
    """Print medians, and whether what is required holds."""
    rates = {entry: statistics.median(one.requests_per_second for one in found if one.entry == entry)
             for entry in dict.fromkeys(one.entry for one in found)}
    for entry, rate in rates.items():
        print(f"{name:14} {entry:34} median {rate:8,.0f} a second")
    ours = [one for one in found if one.entry == OURS]
    share = rates[OURS] / rates[ALONE]
    slowest, errors = max(one.p99_ms or 0.0 for one in ours), sum(one.errors for one in ours)
    start = max(one.start_seconds or 0.0 for one in ours)
    bars = {
        f"start within 3 s: {start:.2f} s": start < 3, f"no error: {errors}": errors == 0,
        **({f"80 % of ONNX Runtime alone: {share:.0%}": share >= 0.8} if MODELS[name][1] == "JPEG" else {
            f"1,500 requests a second: {rates[OURS]:,.0f}": rates[OURS] >= 1500,
            f"99th percentile under 100 ms in every round: {slowest:.1f} ms": slowest < 100,
        }),
    }
    for text, holds in bars.items():
        print(f"{name:14} {'holds' if holds else 'MISSED'}: {text}")


def endure(runs: Path, name: str, minutes: float) -> dict[str, object]:
    """Memory of the server over minutes of load, and its errors."""
    server = Server([*COMMAND, name, "--runs", str(runs), "--port", "0", "--no-browser"])
    print(f"started in {server.start_seconds:.2f} s")
    files, rows = pictures(runs, name), []
    try:
        loop, begun = _loop(), time.monotonic()
        while time.monotonic() - begun < 60 * minutes:
            latencies, errors, seconds = loop.run_until_complete(load(server.address, files, 15.0))
            rows.append({"seconds": time.monotonic() - begun, "megabytes": server.memory() / 2**20,
                         "requests": len(latencies), "errors": errors})
            print(f"{rows[-1]['seconds']:6.0f} s  {rows[-1]['megabytes']:7.1f} MB  {len(latencies) / seconds:7,.0f} a "
                  f"second  errors {errors}", flush=True)
    finally:
        server.end()
    return {"model": name, "rows": rows, "growth_megabytes": rows[-1]["megabytes"] - rows[len(rows) // 4]["megabytes"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path(".serving"), help="where the models are trained and kept")
    parser.add_argument("--models", default=",".join(MODELS), help="some of them, separated by commas")
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--seconds", type=float, default=8.0, help="of load for each server and round")
    parser.add_argument("--minutes", type=float, default=0.0, help="watch memory under load for so long instead")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    names = options.models.split(",")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    prepare(options.runs, names)
    if options.minutes:
        result: object = endure(options.runs, names[0], options.minutes)
        print(f"growth after the first quarter: {result['growth_megabytes']:.1f} MB")  # type: ignore[index]
    else:
        found = compare(options.runs, names, options.repeat, options.seconds)
        for name in names:
            summarize(name, [one for one in found if one.model == name])
        result = [asdict(one) for one in found]
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

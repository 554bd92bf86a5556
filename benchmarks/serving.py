"""How many requests a model server answers: `velodrome serve`, FastAPI with PyTorch, TorchServe, ONNX Runtime alone.

32 clients on the same two cores send pictures as forms and wait for each answer. Every round runs each entry once, in
turn. `--minutes 5` instead watches the memory of `velodrome serve` for that long. Required on two idle cores: for
pictures of 28×28 pixels 1,500 requests a second with a 99th percentile under 100 ms, for photos 80 % of what ONNX
Runtime alone computes, a start within 3 s, no error, no growth of memory.

ONNX Runtime alone is a loop over the same photos and the same file `model.onnx`, without HTTP, with both cores for
itself: nothing is received, nothing is sent, no clients run. Of its three ways (`WAYS`), two compute pixels that were
decoded before, and nothing else. The bar is for the one that begins with the files, as the server does: decoding a
JPEG takes a third of the time of the forward pass, so that no server reaches 80 % of the others.

FastAPI and TorchServe are compared where they are installed: `pip install fastapi python-multipart torchserve`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
from PIL import Image
from serving_clients import WARM, event_loop, load

import velodrome
from velodrome.models.description import ONNX
from velodrome.serving.inputs import decoded
from velodrome.serving.model import LoadedModel, load_for_requests, runtime

OURS, ALONE = "velodrome serve", "ONNX Runtime alone"
#: One call at a time that uses every core, as by default; or a call of one thread on each core, as the server computes
#: models of this size; both of pixels that were decoded before. Or the latter, from the files.
WAYS = ("default settings", "a call per core", "with decoding")
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
    #: CPU time of a request: of the server or of the loop, and of the clients.
    server_microseconds: float | None = None
    client_microseconds: float | None = None


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


class Server:
    """A server in a process of its own."""

    def __init__(self, words: list[str]) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
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

    def used(self) -> float:
        """Seconds of CPU of the server and its workers."""
        one = psutil.Process(self.process.pid)
        times = [process.cpu_times() for process in (one, *one.children(recursive=True))]
        return float(sum(time.user + time.system for time in times))

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def served(words: list[str], entry: str, model: str, files: list[bytes], seconds: float) -> Figures:
    server = Server(words)
    try:
        # The clients have a process of their own, as they would elsewhere, and the same cores.
        given = json.dumps({"address": server.address, "seconds": seconds, "files": [one.hex() for one in files]})
        before = server.used()
        done = subprocess.run([sys.executable, str(Path(__file__).with_name("serving_clients.py"))], input=given,
                              capture_output=True, text=True, timeout=seconds + 60, check=True)
        used, found = server.used() - before, json.loads(done.stdout)
        requests = found["requests_per_second"] * seconds * (1 + WARM / seconds)
        return Figures(entry, model, **found, start_seconds=server.start_seconds,
                       server_microseconds=1e6 * used / requests)
    finally:
        server.end()


def runtime_alone(runs: Path, name: str, files: list[bytes], seconds: float, way: str) -> Figures:
    """ONNX Runtime in loops without a server, on all cores, with batches of 16, in one of `ALONE`'s ways."""
    cores = len(os.sched_getaffinity(0))
    beside = way != "default settings"
    model = load_for_requests(runs / name / "model", name)[0]
    shape = model.image_input
    assert shape is not None
    ready = np.stack([decoded(files[place % len(files)], shape) for place in range(64)])
    stock = runtime().InferenceSession(str(runs / name / "model" / ONNX), providers=["CPUExecutionProvider"])
    counts, end = [0] * cores, time.perf_counter() + seconds

    def work(number: int) -> None:
        while time.perf_counter() < end:
            first = counts[number] % 48
            if way == "with decoding":
                model.scores({"x": np.stack([decoded(files[(first + n) % len(files)], shape) for n in range(16)])})
            elif beside:
                model.scores({"x": ready[first : first + 16]})
            else:
                stock.run(None, {"x": ready[first : first + 16]})
            counts[number] += 16

    before, began = time.process_time(), time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(cores if beside else 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, used = time.perf_counter() - began, time.process_time() - before
    return Figures(f"{ALONE}, {way}", name, sum(counts) / took, server_microseconds=1e6 * used / sum(counts))


def compare(runs: Path, names: list[str], rounds: int, seconds: float, *, without_peers: bool) -> list[Figures]:
    found = []
    peers = {entry: script for module, (entry, script, _) in PEERS.items()
             if find_spec(module) is not None and not without_peers}
    for entry, _, install in PEERS.values():
        if entry not in peers and not without_peers:
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
                *(partial(runtime_alone, runs, name, files, seconds / 2, way) for way in WAYS),
            ]
            for entry in entries[number % 2 :] + entries[: number % 2]:
                figures = entry()
                found.append(figures)
                print(f"round {number + 1}  {name:14} {figures.entry:34} {figures.requests_per_second:8,.0f} a second"
                      + f"  {figures.server_microseconds:6,.0f} µs of CPU"
                      + (f"  clients {figures.client_microseconds:4,.0f} µs  median {figures.median_ms:6.1f} ms  p99 "
                         f"{figures.p99_ms:6.1f} ms  errors {figures.errors}" if figures.p99_ms is not None else ""),
                      flush=True)
    return found


def summarize(name: str, found: list[Figures]) -> None:
    """Print medians, and whether what is required holds."""
    entries = dict.fromkeys(one.entry for one in found)
    rates = {entry: statistics.median(one.requests_per_second for one in found if one.entry == entry)
             for entry in entries}
    ours = [one for one in found if one.entry == OURS]
    costs = {entry: statistics.median(one.server_microseconds or 0.0 for one in found if one.entry == entry)
             for entry in entries}
    for entry, rate in rates.items():
        print(f"{name:14} {entry:36} median {rate:8,.0f} a second, {costs[entry]:6,.0f} µs of CPU each; "
              f"{OURS} has {rates[OURS] / rate:.0%} of its rate with {costs[OURS] / costs[entry]:.0%} of its CPU time")
    share = rates[OURS] / rates[f"{ALONE}, with decoding"]
    slowest, errors = max(one.p99_ms or 0.0 for one in ours), sum(one.errors for one in ours)
    start = max(one.start_seconds or 0.0 for one in ours)
    bars = {
        f"start within 3 s: {start:.2f} s": start < 3, f"no error: {errors}": errors == 0,
        **({f"80 % of ONNX Runtime alone from the same files: {share:.0%}": share >= 0.8}
           if MODELS[name][1] == "JPEG" else {
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
        loop, begun = event_loop(), time.monotonic()
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
    parser.add_argument("--without-peers", action="store_true", help="only velodrome serve and ONNX Runtime")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    names = options.models.split(",")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    prepare(options.runs, names)
    if options.minutes:
        result: object = endure(options.runs, names[0], options.minutes)
        print(f"growth after the first quarter: {result['growth_megabytes']:.1f} MB")  # type: ignore[index]
    else:
        found = compare(options.runs, names, options.repeat, options.seconds, without_peers=options.without_peers)
        for name in names:
            summarize(name, [one for one in found if one.model == name])
        result = [asdict(one) for one in found]
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

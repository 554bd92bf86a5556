"""The processes of driven jobs: `driver_process.py --warm MODULE` imports an engine once, then forks the processes that
it is asked for and reaps them, one request a line.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from velodrome.catalog.registry import engine_of
from velodrome.catalog.world import World
from velodrome.data.examples import ExamplePart, ExampleSet, Text, image_part, image_set
from velodrome.errors import VelodromeError
from velodrome.job.job import Job
from velodrome.training.__main__ import report
from velodrome.training.context import Context, Emitter
from velodrome.training.host import avoid_missing_tiles
from velodrome.variables import WORLD

#: In place of a file of data: the job's own data set is loaded, as in a real run.
CATALOGUE = "-"


def read_data(path: str) -> ExampleSet:
    """From an `.npz` file into memory, or from a folder of `.npy` files that stay on disk."""
    if Path(path).is_dir():
        return _splits({file.stem: np.load(file, mmap_mode="r") for file in Path(path).glob("*.npy")})
    with np.load(path) as stored:
        return _splits(stored)


def _splits(stored: Any) -> ExampleSet:
    parts = {
        name: image_part(stored[f"{name}_images"], stored[f"{name}_labels"]) for name in ("train", "validation", "test")
    }
    return image_set(name="driven", classes=int(stored["classes"]), scale=float(stored["scale"]), **parts)


def read_arrays(path: str) -> ExampleSet:
    """Named arrays, `part.inputs.name`, from an `.npz` file into memory, or from a folder of `.npy` files on disk."""
    if Path(path).is_dir():
        stored = {file.stem: np.load(file, mmap_mode="r") for file in Path(path).glob("*.npy")}
    else:
        with np.load(path) as opened:
            stored = {name: opened[name] for name in opened.files}

    def part(name: str) -> ExamplePart:
        sides = [
            {key.split(".")[2]: array for key, array in stored.items() if key.startswith(f"{name}.{side}.")}
            for side in ("inputs", "targets")
        ]
        return ExamplePart(*sides)

    images = frozenset(str(name) for name in stored.get("images", ()))
    return ExampleSet("driven", part("train"), part("validation"), part("test"), images=images)


def read_text(path: str) -> Text:
    with np.load(path) as stored:
        vocabulary = [str(word) for word in stored["vocabulary"]]
        return Text("driven", stored["train"], stored["validation"], stored["test"], vocabulary)


def work(role: str, rank: str, data: str, folder: str, resume: str, job: str) -> int:
    """Be one process of a job; events go to what stdout was, everything else to stderr."""
    events = Emitter(os.dup(1), role, int(rank))
    os.dup2(2, 1)
    faulthandler.enable()
    context = Context(
        job=Job.model_validate_json(job), world=World.from_json(os.environ[WORLD], role, int(rank)),
        folder=Path(folder), events=events, threads=1, resume=resume == "1",
    )
    if without := os.environ.get("DRIVER_WITHOUT"):
        module, function = without.split(":")
        *classes, name = function.split(".")
        setattr(reduce(getattr, classes, import_module(module)), name, lambda *_: None)
    try:
        if Path(data).name == "named":
            pass  # the job names its data, which is loaded as in a real run
        elif Path(data).name.startswith("arrays"):
            context.data = context.task.fit(context.job, read_arrays(data))
        elif data != CATALOGUE:
            context.data = {"classification": read_data, "language-model": read_text}[context.task.name](data)
        import_module(engine_of(context.job).worker).train(context)
    except BaseException as error:
        report(error, events)
        return error.exit_code if isinstance(error, VelodromeError) else 1
    return 0


def leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def fork(order: dict[str, Any]) -> int:
    """Fork a process with its own environment and files for its output."""
    pid = os.fork()
    if pid:
        return pid
    for descriptor, path in ((0, os.devnull), (1, order["output"]), (2, order["log"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.update(order["environment"])
    sys.path[:0] = [folder for folder in order["environment"].get("PYTHONPATH", "").split(os.pathsep) if folder]
    leave(work(*order["words"]))
    raise AssertionError("unreachable")


def reap(pids: list[int], seconds: float) -> list[int]:
    """The exit codes of forked processes; who is not done in time writes its stacks into its log and is killed."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    aborted: set[int] = set()
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline + 2:
                os.kill(pid, signal.SIGKILL)
            elif time.monotonic() > deadline and pid not in aborted:
                aborted.add(pid)
                os.kill(pid, signal.SIGABRT)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


def warm(module: str) -> None:
    avoid_missing_tiles()
    import_module(module)
    if "torch" in sys.modules:
        import_module("torch._dynamo")  # DistributedDataParallel loads it, and it takes as long as PyTorch itself
    running: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "fork" in request:
            answer = [fork(order) for order in request["fork"]]
            running.update(answer)
        else:
            answer = reap(request["reap"], request["seconds"])
            running.difference_update(request["reap"])
        print(json.dumps(answer), flush=True)
    for pid in running:  # their test failed before it waited for them
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    warm(sys.argv[2])

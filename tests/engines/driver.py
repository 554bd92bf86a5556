"""Runs one job as the real processes of a plan, on data of the test's own, and gives back what they said and wrote.

Framework-neutral: any engine whose `train(context)` calls the shared loop can be driven. No controller takes part.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog.registry import engine_of, strategy_of
from velodrome.catalog.world import Member, World, numbered
from velodrome.events import parse_event
from velodrome.job.job import Job
from velodrome.job.resolve import resolve, roles_of
from velodrome.training import checkpoint
from velodrome.training.learner import State
from velodrome.variables import SECRET, WORLD

Arrays = Mapping[str, NDArray[Any]]
PROCESS = Path(__file__).with_name("driver_process.py")
#: In place of a file: the data set that the job names is loaded, as in a real run.
NAMED = Path("named")


@dataclass
class Ended:
    """One process that ran."""

    role: str
    rank: int
    code: int
    log: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]


@dataclass
class Ran:
    """A job that ended: its processes and its folder."""

    processes: list[Ended]
    folder: Path

    @property
    def state(self) -> State:
        """Weights and optimizer state of the newest checkpoint."""
        newest = checkpoint.latest(self.folder)
        assert newest is not None, self.logs
        return newest.state

    @property
    def result(self) -> dict[str, Any]:
        (result,) = [event for process in self.processes for event in process.of_kind("result")]
        return result

    @property
    def logs(self) -> str:
        return "\n".join(f"--- {each.role} {each.rank}: {each.code}\n{each.log}" for each in self.processes)


def write_data(path: Path, *, examples: int = 90, shape: tuple[int, int, int] = (8, 8, 1), classes: int = 10) -> Path:
    """Random but learnable images: each class is brighter in a row of its own."""
    random = np.random.default_rng(7)
    parts = {}
    for name, count in (("train", examples), ("validation", 23), ("test", 31)):
        labels = random.integers(0, classes, count)
        images = random.integers(0, 128, (count, *shape))
        images[np.arange(count), labels % shape[0]] += 100
        parts |= {f"{name}_images": images.astype(np.uint8), f"{name}_labels": labels.astype(np.int64)}
    np.savez(path, classes=classes, scale=1 / 255, **parts)
    return path


def write_arrays(
    path: Path, inputs: Arrays, targets: Arrays, *, images: Sequence[str] = (), files: bool = False
) -> Path:
    """Named arrays with a row per example, the last ones for test and validation; `files` is a folder of `.npy`."""
    count = len(next(iter(inputs.values())))
    first, second = count - 54, count - 31
    parts = {"train": slice(0, first), "validation": slice(first, second), "test": slice(second, count)}
    named = {f"{part}.{side}.{name}": array[rows] for part, rows in parts.items()
             for side, arrays in (("inputs", inputs), ("targets", targets)) for name, array in arrays.items()}
    if not files:
        np.savez(path / "arrays.npz", images=np.array(images, dtype="U20"), **named)
        return path / "arrays.npz"
    folder = path / "arrays"
    folder.mkdir()
    for name, array in named.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "images.npy", np.array(images, dtype="U20"))
    return folder


def write_text(path: Path, *, words: int = 400, vocabulary: int = 30) -> Path:
    """A random but learnable text: words come round in turn, with some thrown in at random."""
    random = np.random.default_rng(7)
    parts = {}
    for name, count in (("train", words), ("validation", 70), ("test", 90)):
        text = np.arange(count) % vocabulary
        text[random.random(count) < 0.3] = random.integers(0, vocabulary)
        parts[name] = text.astype(np.int32)
    np.savez(path, vocabulary=[f"word{number}" for number in range(vocabulary)], **parts)
    return path


def free_ports(hosts: list[str]) -> list[int]:
    sockets = [socket.create_server((host, 0)) for host in hosts]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def members_of(job: Job, hosts: list[str] | None = None) -> list[Member]:
    """Where the processes of a job listen: on the loopback unless hosts are given, one for each worker."""
    places = roles_of(job)
    names = [hosts[rank % len(hosts)] if hosts else "127.0.0.1" for _, rank in places]
    ports = free_ports(names)
    return list(numbered(
        Member(role, rank, name, port) for (role, rank), name, port in zip(places, names, ports, strict=True)
    ))


def _words_and_environment(
    job: Job, data: Path, folder: Path, resume: bool, members: list[Member], me: Member
) -> tuple[list[str], dict[str, str]]:
    folder.mkdir(parents=True, exist_ok=True)
    world = World(tuple(members), me)
    environment = {**engine_of(job).environment(strategy_of(job), world), WORLD: world.to_json(), SECRET: "of tests"}
    folders = [str(PROCESS.parent), str(PROCESS.parent / job.engine), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(folders)
    return [me.role, str(me.rank), str(data), str(folder), str(int(resume)), job.model_dump_json()], environment


@dataclass(frozen=True)
class Started:
    """One process of a job that has been started: forked, and reaped, by the warm process of its engine."""

    member: Member
    pid: int
    output: Path
    log: Path
    warm: subprocess.Popen[str]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait_for(self, words: str, seconds: float = 280) -> None:
        """Wait until it has said some words."""
        deadline = time.monotonic() + seconds
        while words not in self.output.read_text():
            assert time.monotonic() < deadline, f"{self.member.name} did not say {words}:\n{self.log.read_text()}"
            time.sleep(0.02)


def start(
    job: Job, data: Path, folder: Path, *, hosts: list[str] | None = None, resume: bool = False, without: str = "",
    only: list[int] | None = None, members: list[Member] | None = None,
) -> list[Started]:
    """Start the processes of a job, or those of some ranks only, forked from one that has imported the engine already.

    `without` names a function as `module:function` that answers None in them: what a framework no longer offers.
    """
    job = resolve(job)
    members = members or members_of(job, hosts)
    chosen = [me for me in members if only is None or me.rank in only]
    orders = []
    for me in chosen:
        words, environment = _words_and_environment(job, data, folder, resume, members, me)
        environment["DRIVER_WITHOUT"] = without
        name = f"{me.role}-{me.rank}"
        files = {"output": str(folder / f"{name}.out"), "log": str(folder / f"{name}.log")}
        orders.append({"words": words, "environment": environment, **files})
        for file in files.values():
            Path(file).touch()
    warm = _warm(engine_of(job).worker)
    return [
        Started(me, pid, Path(order["output"]), Path(order["log"]), warm)
        for me, pid, order in zip(chosen, _ask(warm, fork=orders), orders, strict=True)
    ]


def finish(started: list[Started], folder: Path, *, seconds: float = 280) -> Ran:
    """Wait for all of them; one that does not end in time is killed, so that none outlives this call."""
    codes = _ask(started[0].warm, reap=[each.pid for each in started], seconds=seconds)
    return Ran([_ended(each, code) for each, code in zip(started, codes, strict=True)], folder)


def run(
    job: Job, data: Path, folder: Path, *, hosts: list[str] | None = None, resume: bool = False, good: bool = True,
    seconds: float = 280, without: str = "",
) -> Ran:
    """Run a job to its end."""
    ran = finish(start(job, data, folder, hosts=hosts, resume=resume, without=without), folder, seconds=seconds)
    assert not good or all(process.code == 0 for process in ran.processes), ran.logs
    return ran


@cache
def _warm(module: str) -> subprocess.Popen[str]:
    """A process that has imported an engine's worker module and computed nothing; it ends with the test session."""
    warm = subprocess.Popen(
        [sys.executable, str(PROCESS), "--warm", module], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(warm.communicate)
    return warm


def each_once(data: Path, new_folder: Callable[[], Path]) -> Callable[[Job], Ran]:
    """A function that runs a job to its end, and returns the same run when it is asked for again."""
    made: dict[str, Ran] = {}

    def of(job: Job) -> Ran:
        key = job.model_dump_json()
        if key not in made:
            made[key] = run(job, data, new_folder())
        return made[key]

    return of


def _ask(warm: subprocess.Popen[str], **request: Any) -> list[int]:
    assert warm.stdin is not None
    assert warm.stdout is not None
    warm.stdin.write(json.dumps(request) + "\n")
    warm.stdin.flush()
    answer: list[int] = json.loads(warm.stdout.readline())
    return answer


def _ended(started: Started, code: int) -> Ended:
    lines = started.output.read_text().splitlines()
    events = [event.as_json() for event in map(parse_event, lines) if event is not None]
    return Ended(started.member.role, started.member.rank, code, started.log.read_text(), events)


def loading_code(folder: Path) -> str:
    """The Python code in a saved model's `README.md`, which loads it as `model`."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    return str(code)


def largest_difference(one: State, other: State, prefix: str = "") -> float:
    """Between two states with the same names and shapes."""
    names = {name for name in one if name.startswith(prefix)}
    assert names == {name for name in other if name.startswith(prefix)}
    assert names
    return max(float(np.abs(one[name].astype(np.float64) - other[name].astype(np.float64)).max()) for name in names)

"""A launcher whose processes are scripts: lists of what happens, one entry per tenth of a second of a fake clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from velodrome.clusters.launcher import Allocation, Deliver, Diagnosis, Exit, Group, Launcher, Notice, no_notice
from velodrome.clusters.plan import Plan, Process
from velodrome.events import PREFIX, to_line
from velodrome.job.job import Job

TICK = 0.1
#: What a process does in one tick: lines it prints, or how it ends; None for nothing.
Action = str | int | None
Script = Sequence[Action]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def line(kind: str, **fields: Any) -> str:
    """An event as a process prints it, by a clock that is a day late."""
    return PREFIX + to_line({"time": 1.0, "role": "worker", "rank": 0, "kind": kind, **fields})


def phase(name: str, state: str = "begin", **fields: Any) -> str:
    return line("phase", phase=name, state=state, **({"seconds": 0.1} if state == "end" else {}), **fields)


def hello(heartbeat_seconds: float | None) -> str:
    promised = {} if heartbeat_seconds is None else {"heartbeat_seconds": heartbeat_seconds}
    return line("hello", host="a", clock=1.0, interpreter="python", python="3.11", versions={}, cores=1, memory_bytes=1,
                **promised)


def heartbeat(steps: int = 0, *, waiting: bool = False) -> str:
    return line("resources", cpu_percent=50.0, memory_bytes=1, network={"in": 0, "out": 0, "loopback": 0}, steps=steps,
                waiting=waiting)


RESULT = line(
    "result", test={"correct": 1, "total": 2, "loss_sum": 1.0}, history=[], parameters=1, steps=1,
    pace={"seconds": 1.0, "examples": 1, "steps": 1, "warmup": {"steps": 0, "examples": 0, "seconds": 0.0}},
)
CONNECT = (phase("connect"), phase("connect", "end"), phase("train", epoch=1))
FINISH = (phase("evaluate", "end", part="test"), RESULT)


def beats(seconds: float, steps: Callable[[int], int] = lambda tick: 0, *, waiting: bool = False) -> list[Action]:
    """A heartbeat in every tick."""
    return [heartbeat(steps(tick), waiting=waiting) for tick in range(round(seconds / TICK))]


@dataclass
class ScriptedGroup(Group):
    """Processes that follow their scripts; one whose script is over does nothing more."""

    scripts: dict[Process, Script]
    clock: Clock
    diagnoses: dict[str, Diagnosis] = field(default_factory=dict)
    exits: dict[Process, Exit] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    ticks: int = 0
    uncollectable: Exception | None = None
    #: What happens while files are collected.
    collecting: Callable[[Callable[[], bool]], None] = lambda given_up: None

    def wait(self, seconds: float, deliver: Deliver) -> None:
        self.clock.now += TICK
        for process, script in self.scripts.items():
            action = script[self.ticks] if self.ticks < len(script) and process not in self.exits else None
            if isinstance(action, int):
                self.exits[process] = Exit.from_returncode(action)
            elif action is not None:
                for text in action.split("\n"):
                    deliver(process, text)
        self.ticks += 1
        assert self.ticks < 10_000, "the supervisor never decided"

    def exit_of(self, process: Process) -> Exit | None:
        return self.exits.get(process)

    def diagnose(self, process: Process, *, brief: bool = False) -> Diagnosis:
        return self.diagnoses.get(process.file_name, Diagnosis("a stack", "a stack"))

    def collect(self, given_up: Callable[[], bool]) -> None:
        self.calls.append("collect")
        self.collecting(given_up)
        if self.uncollectable is not None:
            raise self.uncollectable

    def stop(self) -> None:
        self.calls.append("stop")


@dataclass
class ScriptedLauncher(Launcher):
    """Gives each started plan the next of its lists of scripts, one script per process."""

    attempts: list[list[Script]]
    clock: Clock = field(default_factory=Clock)
    hosts: tuple[str, ...] = ("10.0.0.1", "10.0.0.2")
    options: dict[str, Any] = field(default_factory=dict)
    groups: list[ScriptedGroup] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    ports: int = 5000
    name: str = "scripted"

    def check(self, job: Job) -> None: ...

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        return Allocation(self.hosts, self._port)

    def _port(self, host: str) -> int:
        self.ports += 1
        return self.ports

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> ScriptedGroup:
        scripts = dict(zip(plan.processes, self.attempts[len(self.groups)], strict=True))
        self.plans.append(plan)
        self.groups.append(ScriptedGroup(scripts, self.clock, **self.options))
        return self.groups[-1]


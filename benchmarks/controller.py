"""What the controller costs with many processes: stand-ins that report one event per second each.

    .venv/bin/python benchmarks/controller.py --counts 50,100,200,400 --seconds 60

The supervisor, the group of local processes and the store are those of any run; only the processes are not: small
programs that print the events of a worker and train nothing. Printed are the controller's share of one core while all
of them report, the lines that were lost, and how its memory grew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from velodrome.clusters.launcher import Allocation
from velodrome.clusters.local.launcher import LocalGroup, LocalLauncher
from velodrome.clusters.local.processes import ColdProcess
from velodrome.clusters.plan import Plan
from velodrome.events import PREFIX, read_events
from velodrome.events.models import Event, ResourcesEvent
from velodrome.job.job import Job
from velodrome.run.execute import execute
from velodrome.run.state import RunState
from velodrome.run.store import Store

#: Events as a worker writes them. Rank 0 also reports the result, and all of them end.
_STAND_IN = """
import json, sys, time
rank, beats, begin = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
def say(kind, **fields):
    line = json.dumps({"time": time.time(), "role": "worker", "rank": rank, "kind": kind, **fields})
    sys.stdout.write(sys.argv[4] + line + "\\n"); sys.stdout.flush()
say("hello", schema=SCHEMA, host="host%d" % (rank % 50), clock=time.time(), interpreter="python", python="3.11",
    versions={}, cores=1, memory_bytes=1, heartbeat_seconds=1.0)
say("phase", phase="connect", state="end", seconds=0.1)
say("phase", phase="train", state="begin", epoch=1)
time.sleep(max(0.0, begin - time.time()) + rank % 100 / 100)
for beat in range(beats):
    say("resources", cpu_percent=50.0, memory_bytes=1 << 28, network={"in": 10 * beat, "out": 10 * beat, "loopback": 0},
        steps=beat, waiting=False, cpu_time={"seconds": 1.0, "busy": 1.5, "own": 0.5, "controller": 0.1})
    time.sleep(1.0)
say("phase", phase="evaluate", state="end", seconds=0.1, part="test")
if rank == 0:
    time.sleep(1.0)
    say("result", test={"correct": 1, "total": 2, "loss_sum": 1.0}, history=[], parameters=1, steps=beats,
        pace={"seconds": 1.0, "examples": 1, "steps": 1, "warmup": {"steps": 0, "examples": 0, "seconds": 0.0}})
"""


@dataclass
class StandIns(LocalLauncher):
    """Starts stand-ins in place of training processes; all begin to report at the same moment."""

    beats: int = 10
    name: str = "stand-ins"
    begin: float = 0.0

    def check(self, job: Job) -> None:
        """They need nothing."""

    def allocate(self, job: Job) -> Allocation:
        return Allocation(("127.0.0.1",), lambda host: 20_000)

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> LocalGroup:
        from velodrome.events.fields import SCHEMA_VERSION

        group = LocalGroup("0" * 24)
        self.begin = time.time() + 1.0 + 0.05 * len(plan.processes)
        source = _STAND_IN.replace("SCHEMA", str(SCHEMA_VERSION))
        for process in plan.processes:
            words = [sys.executable, "-I", "-S", "-c", source, str(process.rank), str(self.beats), str(self.begin),
                     PREFIX]
            popen = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
            )
            group.add(ColdProcess(process, popen))
        return group


@dataclass
class Marks:
    """CPU time and memory of this process while stand-ins report."""

    launcher: StandIns
    samples: list[tuple[float, float, int]] = field(default_factory=list)

    def take(self, state: RunState, event: Event) -> None:
        now = time.time()
        if isinstance(event, ResourcesEvent) and (not self.samples or now - self.samples[-1][0] > 1.0):
            self.samples.append((now, time.process_time(), psutil.Process().memory_info().rss))


def measure(count: int, seconds: int, scratch: Path) -> dict[str, Any]:
    launcher = StandIns(beats=seconds)
    marks = Marks(launcher)
    job = Job.model_validate({"engine": "torch", "strategy": "ddp", "workers": count, "dataset": "digits",
                              "batch_size": max(128, count), "start_timeout": 600})
    result = execute(job, store=Store(scratch), launcher=launcher, name=f"of-{count}", listener=marks.take)
    kept = Counter(event.kind for event in read_events(scratch / f"of-{count}" / "events.jsonl"))
    steady = [mark for mark in marks.samples if mark[0] > launcher.begin + 2.0] or marks.samples
    (began, before, small), (ended, after, large) = steady[0], steady[-1]
    return {
        "processes": count, "seconds": round(ended - began, 1), "status": result["status"],
        "cpu_percent": round(100 * (after - before) / (ended - began), 2),
        "lines": kept["resources"], "lost": count * seconds - kept["resources"],
        "memory_mib": round(large / 2**20, 1), "growth_mib": round((large - small) / 2**20, 2),
        "bytes_per_line": round((large - small) / max(1, count * (ended - began))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="200", help="numbers of processes, with commas between [200]")
    parser.add_argument("--seconds", type=int, default=60, help="how long each of them reports [60]")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        for count in map(int, options.counts.split(",")):
            found.append(measure(count, options.seconds, Path(scratch)))
            print(json.dumps(found[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    table = Table("processes", "% of one core", "lines", "lost", "memory MiB", "growth MiB")
    for row in found:
        table.add_row(*(f"{row[name]:,}" for name in ("processes", "cpu_percent", "lines", "lost", "memory_mib",
                                                      "growth_mib")))
    Console().print(table)


if __name__ == "__main__":
    os.environ.setdefault("VELODROME_STRICT_EVENTS", "1")
    main()

"""How well estimates of a race's duration agree with what it took: 20 recorded races, each estimated in two ways.

    .venv/bin/python benchmarks/estimates.py
    .venv/bin/python benchmarks/estimates.py --record

`measured`: nothing has run yet, and every engine's `single` is trained for a second, as before a race. `runs`: from the
runs of all other recorded races of the same model and engine, as `velodrome race` finds them in its folder. `--record`
runs the races that the file does not have, all in about ten minutes, and adds them; without it the file is judged. The
bars: a median error of at most 25 %, and no race off by more than a factor of two.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import velodrome
from velodrome.clusters import open_cluster
from velodrome.data import catalogue
from velodrome.events.fields import HistoryRow
from velodrome.events.result import Machine, Node, Seconds, Throughput
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.judge.estimate import Known, Timing, estimate, known_of
from velodrome.machine import cores
from velodrome.races.costs import measured_jobs
from velodrome.races.plan import plan_race
from velodrome.races.request import read_request
from velodrome.run.dry_run import measure
from velodrome.run.store import Store

FILE = Path(__file__).resolve().parent / "estimates.json"
MOST_MEDIAN, MOST_FACTOR = 0.25, 2.0
#: Byte images that mean nothing, of the size of MNIST.
NOISE, EXAMPLES = "path:noise.npz", 6_000


@dataclass(frozen=True)
class Race:
    """A race to record: fields that its jobs share, and what varies."""

    job: Mapping[str, Any]
    vary: Mapping[str, Sequence[Any]]


def _races() -> Iterator[Race]:
    strategies = {"strategy": ["ddp", "zero1"], "workers": [1, 2]}
    workers = {"strategy": ["ddp"], "workers": [1, 2, 3]}
    sizes = {"strategy": ["ddp"], "workers": [2], "batch_size": [32, 256]}
    servers = {"strategy": ["parameter-server", "multi-worker-mirrored"], "workers": [2]}
    for model, noise, digits in (("dense-128", 12, 150), ("dense-300-100", 8, 80), ("lenet5", 2, 0)):
        torch = {"engine": "torch", "model": model}
        yield Race({**torch, "dataset": NOISE, "epochs": noise}, strategies)
        yield Race({**torch, "dataset": NOISE, "epochs": noise}, sizes)
        yield Race({**torch, "dataset": NOISE, "epochs": 2 * noise, "batch_size": 64}, workers)
        if digits:
            yield Race({**torch, "dataset": "digits", "epochs": digits}, strategies)
            yield Race({**torch, "dataset": "digits", "epochs": 2 * digits, "batch_size": 64}, sizes)
        tensorflow = {"engine": "tensorflow", "model": model}
        yield Race({**tensorflow, "dataset": NOISE, "epochs": noise}, servers)
        if digits:
            yield Race({**tensorflow, "dataset": "digits", "epochs": digits}, servers)
    for model in ("dense-128", "dense-300-100"):
        small = {"dataset": NOISE, "epochs": 20, "batch_size": 64}
        yield Race({"engine": "tensorflow", "model": model, **small}, servers)


def record(file: Path, console: Console) -> None:
    """Run the races that a file does not have yet and add what they took, with a second of training before
    each."""
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    with tempfile.TemporaryDirectory(prefix="velodrome-") as folder, open_cluster() as cluster:
        os.chdir(folder)
        random = np.random.default_rng(1)
        images, labels = random.integers(0, 256, (EXAMPLES, 28, 28), np.uint8), random.integers(0, 10, EXAMPLES)
        np.savez("noise.npz", x_train=images, y_train=labels, x_test=images[:1000], y_test=labels[:1000])
        launcher = cluster.launcher
        launcher.prepare(["torch", "tensorflow"])
        for number, race in enumerate(_races(), start=1):
            if any(one["race"] == number for one in found):
                continue
            name = f"race-{number}"
            planned = plan_race(read_request(None, dict(race.job), race.vary, name=name, measure=False), cluster)
            seconds = [(job, measure(job, launcher)) for job in measured_jobs([one.job for one in planned.entries])]
            velodrome.race(job=dict(race.job), vary=race.vary, name=name, runs="runs", measure=False)
            runs = [(run.job(), result) for run in Store(Path("runs") / name).runs()
                    if ".attempt-" not in run.name and (result := run.result()) and result.status == "finished"]
            about = catalogue.describe(str(race.job["dataset"]))
            found.append({
                "race": number, "cores": cores(), "examples": about.train,
                "pixels": math.prod(about.input_shape or ()) or None,
                "measured": [{"job": _short(job), "timing": asdict(timing)} for job, timing in seconds if timing],
                "runs": [{"job": _short(job), "result": _brief(result)} for job, result in runs],
            })
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            took = sum(run["result"]["seconds"]["total"] for run in found[-1]["runs"])
            console.print(f"{number}: {race.job['engine']} {race.job['model']} on {race.job['dataset']}: {took:.1f} s")


def _short(job: Job) -> dict[str, Any]:
    return job.model_dump(exclude_defaults=True)


def _brief(result: Result) -> dict[str, Any]:
    """What `known_of` reads of a result, and how busy other programs were."""
    return {
        "seconds": result.seconds.as_json(), "examples_per_second": result.throughput.examples_per_second,
        "epochs": len(result.history),
        "evaluate": round(sum(epoch.evaluate_seconds for epoch in result.history), 4),
        "import": max((node.phases.get("import", 0.0) for node in result.nodes), default=0.0),
        "cores": result.machine.cores if result.machine is not None else 1,
        "foreign": max((host.cpu.foreign for host in result.hosts if host.cpu is not None), default=0.0),
    }


def _result(brief: Mapping[str, Any]) -> Result:
    """A recorded run as `known_of` reads it."""
    epoch = HistoryRow.model_construct(evaluate_seconds=brief["evaluate"] / brief["epochs"])
    return Result.model_construct(
        seconds=Seconds.model_construct(**brief["seconds"]),
        throughput=Throughput.model_construct(examples_per_second=brief["examples_per_second"]),
        history=[epoch] * brief["epochs"], nodes=[Node.model_construct(phases={"import": brief["import"]})],
        machine=Machine.model_construct(cores=brief["cores"]),
    )


def _timing(recorded: Mapping[str, float]) -> Timing:
    """What a second of training shows; the rest is what the rule supposes."""
    return Timing(**{name: value for name, value in recorded.items() if name not in ("save", "rest")})


@dataclass(frozen=True)
class Judged:
    """A race and how its duration was estimated."""

    race: int
    text: str
    basis: str
    expected: float
    took: float

    @property
    def factor(self) -> float:
        return self.expected / self.took


def judge(recorded: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Estimate every recorded race in both ways."""
    runs = {race["race"]: [known for run in race["runs"] if (known := known_of(
        _result(run["result"]), Job.model_validate(run["job"]), race["examples"]))] for race in recorded}
    found = []
    for race in recorded:
        others = [known for number, members in runs.items() if number != race["race"] for known in members]
        seconds = [Known(Job.model_validate(one["job"]), _timing(one["timing"]), race["cores"], measured=True)
                   for one in race["measured"]]
        jobs = [Job.model_validate(run["job"]) for run in race["runs"]]
        took = sum(run["result"]["seconds"]["total"] for run in race["runs"])
        text = f"{jobs[0].engine} {jobs[0].model} on {jobs[0].dataset.removeprefix('path:')}, {len(jobs)} jobs"
        for basis, known in (("measured", seconds), ("runs", others)):
            parts = [estimate(job, race["examples"], race["pixels"], race["cores"], known, warm=True) for job in jobs]
            if all(part.measured for part in parts):
                found.append(Judged(race["race"], text, basis, sum(part.seconds for part in parts), took))
    return found


def errors(judged: Sequence[Judged], basis: str) -> tuple[float, float]:
    """The median error of an estimate, and the largest factor by which one is off, either way."""
    factors = [one.factor for one in judged if one.basis == basis]
    return median(abs(factor - 1) for factor in factors), max(max(factor, 1 / factor) for factor in factors)


def show(judged: Sequence[Judged], console: Console) -> bool:
    table = Table("race", "what", "basis", "expected", "took", "expected / took")
    for one in judged:
        table.add_row(str(one.race), one.text, one.basis, f"{one.expected:.1f} s", f"{one.took:.1f} s",
                      f"{one.factor:.2f}")
    console.print(table)
    holds = True
    for basis in ("measured", "runs"):
        middle, worst = errors(judged, basis)
        holds = holds and middle <= MOST_MEDIAN and worst <= MOST_FACTOR
        console.print(f"{basis}: median error {middle:.0%} (bar {MOST_MEDIAN:.0%}), worst factor {worst:.2f} "
                      f"(bar {MOST_FACTOR:g}), {sum(one.basis == basis for one in judged)} races")
    return holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="run the races that the file does not have")
    parser.add_argument("--json", type=Path, default=FILE, metavar="FILE", help="recorded races [estimates.json]")
    options = parser.parse_args()
    console, file = Console(), options.json.resolve()
    if options.record:
        record(file, console)
    sys.exit(0 if show(judge(json.loads(file.read_text(encoding="utf-8"))), console) else 1)


if __name__ == "__main__":
    main()

"""What feeding costs: a step that gathers its batch against the same step on a fixed one, and shards against memory.

    .venv/bin/python benchmarks/input.py --repeat 20 --json input.json

Both of a pair are measured one after the other in this process, in random order, one thread. `gather` is the time of
steps of dense-300-100 at batch 128 with their input over that of the same steps without; `shards` is the throughput of
lenet5 from raw shards on the local disk, mapped, over that from memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
from ratios import ratio

from velodrome.catalog.world import World
from velodrome.data import catalogue
from velodrome.data.examples import ExampleSet
from velodrome.data.shards.data_set import load_shards
from velodrome.data.shards.write import write_shards
from velodrome.data.storage.store import open_store
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.network import task_of_job
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.tasks.base import Batch
from velodrome.tasks.schedule import by_data
from velodrome.training.context import Context, Emitter
from velodrome.transport.base import Alone

BATCH = 128
#: The largest cost of gathering, and the least share of the throughput from memory.
MOST, LEAST = 1.05, 0.80
CPU = torch.device("cpu")


class Fixed:
    """Gives every step the batch of the first, so that nothing is gathered."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def batch(self, low: int, high: int) -> Batch:
        return self._batch


def learner_of(model: str, data: ExampleSet, dataset: str) -> TorchLearner:
    job = resolve(Job(dataset=dataset, model=model, batch_size=BATCH))
    events = Emitter(os.open(os.devnull, os.O_WRONLY), "worker", 0)
    context = Context(job=job, world=World.alone(), folder=Path(), events=events, threads=1)
    context.data = data
    return TorchLearner(context, task_of_job(context).network(CPU), Alone(), CPU)


def seconds_of(learner: TorchLearner, steps: int) -> float:
    began = time.perf_counter()
    learner.train(0, steps)
    return time.perf_counter() - began


def gathering(data: ExampleSet, dataset: str, repeat: int, steps: int, flip: random.Random) -> dict[str, list[float]]:
    """Seconds of the same steps with and without gathering."""
    learner = learner_of("dense-300-100", data, dataset)
    feed, taken = learner._feed, {"gathered": list[float](), "fixed": list[float]()}
    real = feed.train
    for round_ in range(repeat + 1):
        for name in flip.sample(sorted(taken), 2):
            feed.train = real
            learner.begin_epoch(by_data(len(data.train), BATCH, 1, 1, round_ + 1))
            if name == "fixed":
                feed.train = Fixed(real.batch(0, BATCH))
            taken[name].append(seconds_of(learner, min(steps, len(data.train) // BATCH)))
    return {name: values[1:] for name, values in taken.items()}


def streaming(
    sources: dict[str, ExampleSet], dataset: str, repeat: int, steps: int, flip: random.Random
) -> dict[str, list[float]]:
    """Examples per second from each source."""
    learners = {name: learner_of("lenet5", data, dataset) for name, data in sources.items()}
    rates: dict[str, list[float]] = {name: [] for name in sources}
    for round_ in range(repeat + 1):
        for name in flip.sample(sorted(sources), len(sources)):
            examples = len(sources[name].train)
            learners[name].begin_epoch(by_data(examples, BATCH, 1, 1, round_ + 1))
            count = min(steps, examples // BATCH)
            rates[name].append(count * BATCH / seconds_of(learners[name], count))
    return {name: values[1:] for name, values in rates.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="fashion-mnist", help="what is fed [fashion-mnist]")
    parser.add_argument("--repeat", type=int, default=20, help="pairs of measurements [20]")
    parser.add_argument("--steps", type=int, default=100, help="training steps of a measurement [100]")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    flip = random.Random(1)
    data = catalogue.load(options.dataset, seed=1, validation=0.1)
    taken = gathering(data, options.dataset, options.repeat, options.steps, flip)
    gather = ratio(taken["gathered"], taken["fixed"])
    with tempfile.TemporaryDirectory(prefix="velodrome-input-") as folder:
        os.environ["VELODROME_CACHE"] = f"{folder}/cache"
        about = catalogue.describe(options.dataset, validation=0.1)
        write_shards(data, about, open_store(f"{folder}/set"), shards=8, encoding="raw", seed=1, validation=0.1)
        mapped = replace(load_shards(f"{folder}/set", memory_budget=0), name=options.dataset)
        rates = streaming({"memory": data, "shards": mapped}, options.dataset, options.repeat, options.steps, flip)
    shards = ratio(rates["shards"], rates["memory"])
    print(f"gather: a step of dense-300-100 takes {gather} times as long with its input (at most {MOST})")
    print(f"shards: lenet5 reaches {shards} of the throughput from memory (at least {LEAST})")
    if options.json:
        figures = {"gather": asdict(gather), "shards": asdict(shards), "seconds": taken, "examples_per_second": rates}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    # Only an interval that lies wholly on the wrong side is a failure.
    wrong = (gather.low is not None and gather.low > MOST) or (shards.high is not None and shards.high < LEAST)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())

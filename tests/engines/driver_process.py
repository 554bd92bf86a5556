"""One process of a driven job: `driver_process.py ROLE RANK DATA FOLDER RESUME JOB`. Events go to stdout."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

import numpy as np

from velodrome.data.splits import Part, Splits
from velodrome.engines.registry import engine_of
from velodrome.errors import VelodromeError
from velodrome.spec.job import Job
from velodrome.worker.context import Context
from velodrome.worker.events import Emitter


def read_data(path: str) -> Splits:
    with np.load(path) as stored:
        parts = {
            name: Part(stored[f"{name}_images"], stored[f"{name}_labels"]) for name in ("train", "validation", "test")
        }
        return Splits(name="driven", classes=int(stored["classes"]), scale=float(stored["scale"]), **parts)


def main() -> int:
    role, rank, data, folder, resume, job = sys.argv[1:]
    events = Emitter(os.dup(1), role, int(rank))
    os.dup2(2, 1)
    context = Context(
        job=Job.model_validate_json(job), role=role, rank=int(rank), folder=Path(folder), events=events, threads=1,
        resume=resume == "1",
    )
    context.data = read_data(data)
    try:
        import_module(engine_of(context.job).worker).train(context)
    except BaseException as error:
        traceback.print_exc()
        events.emit("error", error=type(error).__name__, message=str(error))
        return error.exit_code if isinstance(error, VelodromeError) else 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

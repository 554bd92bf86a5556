"""What starting warm saves: the wall time of a race of twelve small jobs, forked from warm processes and started anew.

    .venv/bin/python benchmarks/warm.py --repeat 3 --json warm.json

Both kinds take turns, in random order. The jobs are the same, on the embedded digits.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from entries import VELODROME
from ratios import ratio
from running import RunError, end_in_order, run_json

JOBS = 12
RACE = [
    "--dataset", "digits", "--model", "dense-300-100", "--epochs", "5", "--vary",
    "entry=tensorflow/multi-worker-mirrored,tensorflow/parameter-server:1,torch/ddp", "--vary", "workers=1,2",
    "--repeat", "2",
]  # fmt: skip


def seconds_of(start: str, runs: Path, limit: float) -> float:
    """Wall time of the whole command."""
    began = time.perf_counter()
    result = run_json(
        [str(VELODROME), "race", *RACE, f"--{start}", "--json", "--runs", str(runs), "--name", "twelve"], seconds=limit
    )
    finished = sum(row["runs"] for row in result["rows"])
    if finished != JOBS:
        raise RunError(f"{finished} of {JOBS} jobs finished, started {start}: see {runs}")
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="pairs of races [3]")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a race is ended [600]")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    end_in_order()
    taken: dict[str, list[float]] = {"warm": [], "cold": []}
    flip = random.Random(1)
    try:
        for _ in range(options.repeat):
            for start in flip.sample(sorted(taken), 2):
                with tempfile.TemporaryDirectory(prefix="velodrome-warm-") as folder:
                    taken[start].append(seconds_of(start, Path(folder), options.limit))
                print(f"{start}: {taken[start][-1]:.1f} s", flush=True)
    except RunError as error:
        print(error, file=sys.stderr)
        return 1
    saved = ratio(taken["cold"], taken["warm"])
    print(f"a race of {JOBS} jobs takes {saved} times as long when each process starts anew")
    if options.json:
        options.json.write_text(json.dumps({"seconds": taken, "ratio": asdict(saved)}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

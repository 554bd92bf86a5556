"""How long `velodrome report` takes for a race of a thousand runs, and `velodrome runs list` for ten thousand.

    .venv/bin/python benchmarks/large_report.py --repeat 3

The runs are made up (`tests/synthetic_races.py`): only their number matters. Required: 10 s and 2 s on an idle machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from entries import VELODROME

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from synthetic_races import repeated, thousand_runs, write_race


def seconds_of(*words: str) -> float:
    """Wall time of a command."""
    began = time.perf_counter()
    subprocess.run([str(VELODROME), *words], check=True, capture_output=True, timeout=600)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="repetitions [3]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="velodrome-report-") as folder:
        races, many = Path(folder) / "races", Path(folder) / "many"
        write_race(races, thousand_runs(), "large")
        write_race(many, repeated([100.0 + place % 7 for place in range(10_000)], workers=2), "runs")
        report = [seconds_of("report", "large", "--runs", str(races)) for _ in range(options.repeat)]
        listing = [seconds_of("runs", "list", "--runs", str(many / "runs"), "--json") for _ in range(options.repeat)]
    print(f"report of 1,000 runs: {median(report):.1f} s (required: 10)")
    print(f"list of 10,000 runs: {median(listing):.2f} s (required: 2)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

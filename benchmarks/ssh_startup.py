"""How much longer a job takes to start on hosts over SSH than on this machine.

    sudo .venv/bin/python benchmarks/ssh_startup.py --hosts 4 --repeat 5

The hosts are network namespaces of this machine with an sshd each, so both sides import the same framework on the same
cores; what is compared is what SSH adds: connections, agents, checks, code and files. A worker of this machine has a
core that it shares with as few others as possible, so each host gets one in the same way: without that, the workers of
all hosts, the first of their host each, would choose the same core. A pair of runs, one of each, is interleaved with
the next. The seconds are those of the whole command, without training and evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ratios import difference
from running import end_in_order

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "servers"))
import sshd


def seconds(hosts: sshd.Hosts, runs: Path, name: str, count: int, on: str) -> float:
    """Of a command from its start to the first step and from the last one to its end."""
    began = time.perf_counter()
    process = hosts.velodrome(
        "train", "--dataset", "digits", "--engine", "torch", "--strategy", "ddp", "--workers", count, "--epochs", 1,
        "--threads", 1, "--no-checkpoints", "--json", "--runs", runs, "--name", name, "--on", on,
    )
    out, errors = process.communicate(timeout=300)
    took = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(errors)
    result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return took - result["seconds"]["train"] - result["seconds"]["evaluate"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5, help="pairs of runs [5]")
    options = parser.parse_args()
    end_in_order()
    if reason := sshd.unavailable():
        parser.error(reason)
    pairs: list[tuple[float, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as scratch,
        sshd.ssh_hosts(Path(scratch), options.hosts) as hosts,
    ):
        subprocess.run(hosts.controller.enter(["ip", "link", "set", "lo", "up"]), check=True)
        cores = sorted(os.sched_getaffinity(0))
        for number, name in enumerate(hosts.names):
            for pid in hosts.processes(name):  # its sshd, whose sessions inherit it
                os.sched_setaffinity(pid, {cores[number % len(cores)]})
        for number in range(options.repeat + 1):
            order = ("local", "lab") if number % 2 else ("lab", "local")
            took = {on: seconds(hosts, Path(scratch) / "runs", f"{on}-{number}", options.hosts, on) for on in order}
            print(f"{number}: local {took['local']:.2f} s, ssh {took['lab']:.2f} s", flush=True)
            if number:  # the first pair fills caches
                pairs.append((took["local"], took["lab"]))
    more = difference([there for _, there in pairs], [here for here, _ in pairs])
    print(f"start-up on {options.hosts} hosts over SSH: {more} s more than local, whose is "
          f"{statistics.fmean(here for here, _ in pairs):.2f} s ({more.repetitions} pairs)")


if __name__ == "__main__":
    main()

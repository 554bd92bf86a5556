"""Repeats the thesis behind `kouskouras-2022` on nine emulated hosts with its data on a real HDFS.

    sudo .venv/bin/python benchmarks/study_on_hdfs.py --runs studies

A NameNode and three DataNodes run on a host of their own, a network namespace beside the emulated ones. The three data
sets are written there as shards, and every emulated host reads its part over its own link. The address of the HDFS is
the same every time, so a study that was interrupted goes on where it was: the same command again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from entries import VELODROME
from running import end_in_order

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "servers"))
import hdfs as server

DATA = ("mnist", "fashion-mnist", "kmnist")
#: Nobody else is on that host.
PORT, WEB_PORT = 9000, 9870


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the race [runs]")
    parser.add_argument("--scale", default="full", help="as of `velodrome study run` [full]")
    parser.add_argument("--on", default="emulated:nodes=9", help="the cluster [emulated:nodes=9]")
    options = parser.parse_args()
    end_in_order()
    if reason := server.unavailable():
        parser.error(reason)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        scratch = Path(name)
        with server.storage_host(scratch) as host, server.hdfs(scratch / "hdfs", 3, host, (PORT, WEB_PORT)) as cluster:
            for dataset in DATA:
                to = f"{cluster.hdfs}/data/{dataset}"
                subprocess.run([VELODROME, "data", "shard", dataset, "--shards", "1", "--to", to], check=True)
            words = ["study", "run", "kouskouras-2022", "--scale", options.scale, "--on", options.on, "--data-url",
                     f"{cluster.hdfs}/data", "--runs", str(options.runs)]
            return subprocess.run([VELODROME, *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

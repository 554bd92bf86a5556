"""Velodrome against its peers across emulated hosts: the same networks and data at several bandwidths, interleaved.

    sudo .venv/bin/python benchmarks/cluster.py --hosts 2 --bandwidths 100mbit,1gbit,none --repeat 3 --json cluster.json

Every worker has a host of its own, as a network namespace with shaped links. Beside throughput: bytes that a host sends
per step by its own counters, and the bandwidth bound: the examples per second at which a host would only send the
gradient, 2(N-1)/N times its bytes, and compute nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from entries import BATCH, HERE, PEERS_ENVIRONMENT, VELODROME, make_peers_environment
from peers import write
from ratios import Estimate, ratio
from rich.console import Console
from rich.table import Table
from running import ENVIRONMENT, RunError, end_in_order, run_json

from velodrome.clusters.emulated import parse
from velodrome.clusters.emulated.network import Network
from velodrome.data import catalogue

PARAMETERS = {"dense-300-100": 266_610, "lenet5": 431_080}
PORT = 29_517
PEERS = ("torchrun ddp", "accelerate", "tf_keras multi-worker-mirrored")
_SCRIPTS = {"torchrun ddp": "torchrun_ddp.py", "accelerate": "accelerate_ddp.py",
            "tf_keras multi-worker-mirrored": "tf_keras_mirrored.py"}
OURS = ("torch ddp", "torch allreduce", "tensorflow multi-worker-mirrored", "tensorflow allreduce")


@dataclass(frozen=True)
class Cell:
    """A network on so many hosts with links of a bandwidth."""

    model: str
    hosts: int
    bandwidth: str

    def __str__(self) -> str:
        return f"{self.model}, {self.hosts} hosts, {self.bandwidth if self.bandwidth != 'none' else 'unshaped'}"

    @property
    def on(self) -> str:
        return f"nodes={self.hosts}" + (f",bandwidth={self.bandwidth}" if self.bandwidth != "none" else "")

    @property
    def bound(self) -> float | None:
        """Examples per second at which links are the only limit."""
        rate = parse(self.on).bandwidth
        if rate is None:
            return None
        sent = 2 * (self.hosts - 1) / self.hosts * 4 * PARAMETERS[self.model]
        return BATCH * self.hosts / (8 * sent / rate)


@dataclass(frozen=True)
class Measured:
    examples_per_second: float
    #: That one host sent, by its own counters.
    bytes_per_step: float


def measure_ours(name: str, cell: Cell, steps: int, scratch: Path, limit: float) -> Measured:
    engine, strategy = name.split()
    result = run_json(
        [
            str(VELODROME), "train", "--json", "--runs", str(scratch / "runs"), "--dataset", "fashion-mnist",
            "--model", cell.model, "--engine", engine, "--strategy", strategy, "--workers", str(cell.hosts),
            "--batch-size", str(BATCH), "--batch-scope", "per-worker", "--optimizer", "adam",
            "--learning-rate", "0.001", "--epochs", "10000", "--steps", str(steps), "--threads", "1",
            "--no-checkpoints", "--on", f"emulated:{cell.on}",
        ],
        seconds=limit, environment={"GLOO_SOCKET_IFNAME": "eth0"},
    )  # fmt: skip
    rate = (result.get("throughput") or {}).get("examples_per_second")
    if not rate:
        raise RunError("the result holds no throughput")
    sent = max(host["network_bytes"]["out"] for host in result["hosts"])
    return Measured(float(rate), sent / steps)


def measure_peer(name: str, cell: Cell, steps: int, data: Path, limit: float) -> Measured:
    """Start one process of a peer on each host, with the variables that torchrun and TensorFlow's tutorials set."""
    network = Network(parse(cell.on))
    started: list[subprocess.Popen[str]] = []
    try:
        words = [str(PEERS_ENVIRONMENT / "bin" / "python"), str(HERE / "peers" / _SCRIPTS[name]), "--model", cell.model,
                 "--workers", str(cell.hosts), "--steps", str(steps), "--batch", str(BATCH), "--data", str(data)]
        first = network.nodes[0].address
        cluster = {"worker": [f"{node.address}:{PORT}" for node in network.nodes]}
        before = network.nodes[0].traffic()["out"]
        for rank, node in enumerate(network.nodes):
            variables = {
                **os.environ, **ENVIRONMENT, "GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": first,
                "MASTER_PORT": str(PORT), "RANK": str(rank), "WORLD_SIZE": str(cell.hosts), "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "1",
            }
            if name.startswith("tf_keras"):
                variables["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
            started.append(subprocess.Popen(
                node.enter(words), env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, start_new_session=True,
            ))
        try:
            output, errors = started[0].communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise RunError(f"no end after {limit:.0f} s") from None
        sent = network.nodes[0].traffic()["out"] - before
        for line in reversed(output.splitlines()):
            if line.startswith("{"):
                return Measured(float(json.loads(line)["examples_per_second"]), sent / steps)
        last = errors.strip().rpartition("\n")[2]
        raise RunError(f"{shlex.quote(name)} printed no figure: {last[:200]}")
    finally:
        for process in started:
            process.kill()
            process.communicate()
        network.close()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2", help="numbers of hosts, with commas between [2]")
    parser.add_argument("--bandwidths", default="100mbit,1gbit,none", help="of the links [100mbit,1gbit,none]")
    parser.add_argument("--models", default="dense-300-100", help=f"some of {','.join(PARAMETERS)}")
    parser.add_argument("--only", default="", help="names of entries, or parts of them, with commas between")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="training steps of a run, the first 20 untimed [200]")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a run is ended [300]")
    parser.add_argument("--json", type=Path, help="file for all figures; rewritten after every repetition")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the runs [1]")
    options = parser.parse_args()
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    options.entries = [name for name in (*OURS, *PEERS) if not words or any(word in name for word in words)]
    options.cells = [Cell(model, int(hosts), bandwidth) for model in options.models.split(",")
                     for hosts in options.hosts.split(",") for bandwidth in options.bandwidths.split(",")]
    if os.geteuid() != 0:
        parser.error("emulated hosts need root")
    return options


Figures = dict[tuple[str, str], list[Measured | None]]


def measure(options: argparse.Namespace, scratch: Path, console: Console) -> Figures:
    catalogue.prepare("fashion-mnist")
    train = catalogue.load("fashion-mnist", seed=1, validation=0.1).train
    data = scratch / "fashion-mnist.npz"
    np.savez(data, images=train.images, labels=train.labels)
    figures: Figures = defaultdict(list)
    plan = [(cell, name) for cell in options.cells for name in options.entries]
    shuffle = random.Random(options.seed).shuffle
    for repetition in range(1, options.repeat + 1):
        shuffle(plan)
        this: dict[tuple[str, str], Measured | None] = {}
        for number, (cell, name) in enumerate(plan, 1):
            try:
                if name in PEERS:
                    found = measure_peer(name, cell, options.steps, data, options.limit)
                else:
                    found = measure_ours(name, cell, options.steps, scratch, options.limit)
                said = f"{found.examples_per_second:>10,.0f} examples/s, {found.bytes_per_step / 1e6:.2f} MB per step"
            except RunError as error:
                found, said = None, f"[red]failed: {error}[/red]"
            except KeyboardInterrupt:
                console.print(f"interrupted: repetition {repetition} is left out")
                return figures
            this[str(cell), name] = found
            console.print(f"{repetition}/{options.repeat} {number:>3}/{len(plan)}  {cell}  {name}: {said}")
        for key, measured in this.items():
            figures[key].append(measured)
        if options.json:
            write(options.json, {"steps": options.steps, "runs": [
                {"cell": cell, "entry": name, "runs": [one and asdict(one) for one in runs]}
                for (cell, name), runs in figures.items()
            ]})
    return figures


def against(figures: Figures, cell: str, name: str, other: str) -> Estimate | None:
    pairs = [(one.examples_per_second, two.examples_per_second)
             for one, two in zip(figures[cell, name], figures[cell, other], strict=True) if one and two]
    return ratio([one for one, _ in pairs], [two for _, two in pairs]) if pairs else None


def middle(runs: list[Measured | None], field: str) -> float | None:
    values = sorted(getattr(one, field) for one in runs if one is not None)
    return values[len(values) // 2] if values else None


def show(options: argparse.Namespace, figures: Figures, console: Console) -> None:
    for cell in options.cells:
        key, bound = str(cell), cell.bound
        rates: dict[str, float] = {
            name: rate for name in options.entries
            if (rate := middle(figures[key, name], "examples_per_second")) is not None
        }
        peers = [name for name in PEERS if name in rates]
        best = max(peers, key=lambda name: rates[name]) if peers else None
        title = key + (f"; bandwidth bound {bound:,.0f} examples/s" if bound else "")
        table = Table("entry", "examples/s", "MB a host sends per step", "against the best peer", "of the bound",
                      title=title)
        for name in options.entries:
            sent = middle(figures[key, name], "bytes_per_step")
            estimate: Any = "" if best is None else "the best peer" if name == best else against(
                figures, key, name, best)
            table.add_row(name, f"{rates[name]:,.0f}" if name in rates else "failed",
                          "" if sent is None else f"{sent / 1e6:.2f}", str(estimate or ""),
                          f"{rates[name] / bound:.2f}" if bound and name in rates else "")
        console.print(table)


def main() -> None:
    end_in_order()
    options = read_options()
    console = Console(width=150)
    if any(name in PEERS for name in options.entries):
        make_peers_environment()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        show(options, measure(options, Path(scratch), console), console)


if __name__ == "__main__":
    sys.exit(main())

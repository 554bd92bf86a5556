"""Who takes part in the comparison, and the command that trains with each of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from running import RunError, run, run_json

HERE = Path(__file__).resolve().parent
PEERS_ENVIRONMENT = HERE.parent / ".venv-peers"
REQUIREMENTS = (HERE / "requirements-peers.txt", HERE / "requirements-peers-no-deps.txt")
VELODROME = Path(sys.executable).parent / "velodrome"
BATCH = 128
INSTALL_SECONDS = 1800


@dataclass(frozen=True)
class Cell:
    """What is compared: a network, and a number of workers."""

    model: str
    workers: int

    def __str__(self) -> str:
        return f"{self.model}:{self.workers}"


CELLS = tuple(Cell(model, workers) for model in ("dense-300-100", "lenet5") for workers in (1, 2))


@dataclass(frozen=True)
class Setting:
    """The same for every entry of a comparison."""

    steps: int
    data: Path
    scratch: Path
    limit: float


@dataclass(frozen=True)
class Entry:
    name: str
    engine: str
    is_peer: bool
    measure: Callable[[Cell, Setting], float]
    most_workers: int = 2

    def takes(self, cell: Cell) -> bool:
        return cell.workers <= self.most_workers


def _velodrome(engine: str, strategy: str, checkout: Path | None = None) -> Entry:
    """This version of Velodrome, or that of another checkout, with the same Python and packages."""
    command = [str(VELODROME)] if checkout is None else [sys.executable, "-m", "velodrome"]
    environment = {} if checkout is None else {"PYTHONPATH": str(checkout / "src")}

    def measure(cell: Cell, setting: Setting) -> float:
        # a step of an asynchronous strategy is one worker's: as many examples as elsewhere take so many more of them
        steps = setting.steps * (cell.workers if strategy == "parameter-server" else 1)
        result = run_json(
            [
                *command, "train", "--json", "--runs", str(setting.scratch / "runs"),
                "--dataset", "fashion-mnist", "--model", cell.model,
                "--engine", engine, "--strategy", strategy, "--workers", str(cell.workers),
                "--batch-size", str(BATCH), "--batch-scope", "per-worker", "--optimizer", "adam",
                "--learning-rate", "0.001", "--epochs", "10000", "--steps", str(steps), "--threads", "1",
                "--no-checkpoints",
            ],
            seconds=setting.limit,
            environment=environment,
        )  # fmt: skip
        rate = (result.get("throughput") or {}).get("examples_per_second")
        if not rate:
            raise RunError("the result holds no throughput")
        return float(rate)

    name = f"{'velodrome' if checkout is None else 'before'} {engine} {strategy}"
    return Entry(name, engine, False, measure, 1 if strategy == "single" else 2)


def _peer(name: str, engine: str, script: str, *, torchrun: bool = False, most_workers: int = 2) -> Entry:
    def measure(cell: Cell, setting: Setting) -> float:
        start = [str(PEERS_ENVIRONMENT / "bin" / "python")]
        if torchrun:
            start = [
                str(PEERS_ENVIRONMENT / "bin" / "torchrun"), "--nproc-per-node", str(cell.workers),
                "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1",
            ]  # fmt: skip
        answer = run_json(
            [
                *start, str(HERE / "peers" / script), "--model", cell.model, "--workers", str(cell.workers),
                "--steps", str(setting.steps), "--batch", str(BATCH), "--data", str(setting.data),
            ],
            seconds=setting.limit,
            # Ray and others keep files in the home folder: theirs is the benchmark's own
            environment={"HOME": str(setting.scratch)},
        )  # fmt: skip
        return float(answer["examples_per_second"])

    return Entry(name, engine, True, measure, most_workers)


ENTRIES = (
    _velodrome("tensorflow", "single"),
    _velodrome("tensorflow", "multi-worker-mirrored"),
    _velodrome("tensorflow", "parameter-server"),
    _velodrome("tensorflow", "allreduce"),
    _velodrome("torch", "single"),
    _velodrome("torch", "ddp"),
    _velodrome("torch", "allreduce"),
    _peer("keras fit", "tensorflow", "keras_fit.py", most_workers=1),
    _peer("tf_keras fit multi-worker-mirrored", "tensorflow", "tf_keras_mirrored.py"),
    _peer("tf_keras fit parameter-server", "tensorflow", "tf_keras_server.py"),
    _peer("torchrun ddp", "torch", "torchrun_ddp.py", torchrun=True),
    _peer("accelerate", "torch", "accelerate_ddp.py", torchrun=True),
    _peer("lightning fabric", "torch", "fabric_ddp.py", torchrun=True),
    _peer("ray train", "torch", "ray_train.py"),
)


def before(checkout: Path) -> tuple[Entry, ...]:
    """Velodrome's strategies as another checkout has them."""
    mine = [entry.name.split() for entry in ENTRIES if not entry.is_peer]
    return tuple(_velodrome(engine, strategy, checkout) for _, engine, strategy in mine)


def make_peers_environment() -> None:
    """Create `.venv-peers`, and bring it up to date if the requirements changed since."""
    wanted = "".join(file.read_text() for file in REQUIREMENTS)
    stamp = PEERS_ENVIRONMENT / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"Installing the peers into {PEERS_ENVIRONMENT}: a few minutes, about 4 GB.", flush=True)
    run([sys.executable, "-m", "venv", str(PEERS_ENVIRONMENT)], seconds=INSTALL_SECONDS)
    pip = [str(PEERS_ENVIRONMENT / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "-r", str(REQUIREMENTS[0])], seconds=INSTALL_SECONDS)
    run([*pip, "--no-deps", "-r", str(REQUIREMENTS[1])], seconds=INSTALL_SECONDS)
    stamp.write_text(wanted)

"""Parameters that processes share are loaded from a checkpoint before anyone computes with them; here the processes are
threads."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import write_data  # noqa: E402
from driver_process import read_data  # noqa: E402
from thread_transport import Group, Threads  # noqa: E402

from velodrome.catalog.world import World  # noqa: E402
from velodrome.engines.torch.network import task_of_job  # noqa: E402
from velodrome.engines.torch.strategies.allreduce import (  # noqa: E402
    AllReduceLearner,
    FlatLayout,
    SharedMemoryReducer,
)
from velodrome.job.job import Job  # noqa: E402
from velodrome.job.resolve import resolve  # noqa: E402
from velodrome.training.context import Context, LineEmitter  # noqa: E402

#: Every wait of the tests; none of them decides anything.
SECONDS = 60
#: How long a process is given to do what it must not do yet.
TOO_EARLY_SECONDS = 1.0


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def learner_of(rank: int, group: Group, folder: Path, model: str = "dense-128") -> AllReduceLearner:
    job = resolve(Job(model=model, strategy="allreduce", workers=2, batch_size=30, optimizer="adam", ema=0.9))
    context = Context(job, World.alone(), folder, LineEmitter(lambda line: None, "worker", rank), threads=1)
    context.data = read_data(str(folder / "data.npz"))
    cpu = torch.device("cpu")
    learner = AllReduceLearner(context, task_of_job(context).network(cpu), Threads(group, rank), cpu)
    assert isinstance(learner._reducer, SharedMemoryReducer)
    return learner


def checkpoint_of(learner: AllReduceLearner) -> dict[str, Any]:
    """Other weights, momentum and averages than the learner has now."""
    other = ("model.", "optimizer.mean", "optimizer.ema.0")
    return {name: value + 1 if name.startswith(other) else value.copy() for name, value in learner.state().items()}


def tell(event: threading.Event, learner: AllReduceLearner) -> None:
    """Set an event as soon as a learner has written a checkpoint into its parameters."""
    load = learner._optimizer.load

    def load_and_tell(state: Any) -> None:
        load(state)
        event.set()

    learner._optimizer.load = load_and_tell  # type: ignore[method-assign]


def test_a_late_process_does_not_put_its_first_weights_in_place_of_those_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path / "data.npz")
    group, late, stored = Group(2), threading.local(), dict[str, Any]()
    ready, written, moved, continued = (threading.Event() for _ in range(4))
    move = FlatLayout.move

    def move_late(self: FlatLayout, parameters: Any, buffer: Any) -> None:
        if getattr(late, "here", False):
            written.wait(TOO_EARLY_SECONDS)
        move(self, parameters, buffer)

    monkeypatch.setattr(FlatLayout, "move", move_late)

    def first() -> dict[str, Any]:
        learner = learner_of(0, group, tmp_path)
        stored.update(checkpoint_of(learner))
        ready.set()
        tell(written, learner)
        learner.load(stored)
        assert moved.wait(SECONDS)
        state = {name: value.copy() for name, value in learner.state().items()}  # what the next step computes with
        continued.set()
        return state

    def second() -> None:
        late.here = True
        learner = learner_of(1, group, tmp_path)
        moved.set()
        continued.wait(TOO_EARLY_SECONDS)
        assert ready.wait(SECONDS)
        learner.load(stored)

    with ThreadPoolExecutor(2) as pool:
        state, _ = [each.result(SECONDS) for each in (pool.submit(first), pool.submit(second))]
    assert state.keys() == stored.keys()
    for name, value in stored.items():
        assert (state[name] == value).all(), name


def test_a_checkpoint_is_loaded_after_the_chief_has_tried_to_save_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is loaded again seems to be another model than the one that was saved."""
    write_data(tmp_path / "data.npz")
    group, written = Group(2), threading.Event()

    def chief() -> tuple[str, ...]:
        learner = learner_of(0, group, tmp_path, "torch_nets:caching")
        save = learner.save

        def save_and_wait(folder: Path) -> None:
            save(folder)
            written.wait(TOO_EARLY_SECONDS)

        monkeypatch.setattr(learner, "save", save_and_wait)
        notes = learner.check_saving(tmp_path)
        learner.load(checkpoint_of(learner))
        return notes

    def other() -> None:
        learner = learner_of(1, group, tmp_path, "torch_nets:caching")
        tell(written, learner)
        learner.load(checkpoint_of(learner))

    with ThreadPoolExecutor(2) as pool:
        notes, _ = [each.result(SECONDS) for each in (pool.submit(chief), pool.submit(other))]
    assert notes == ()

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

from velodrome.engines.torch.allreduce import AllReduceLearner  # noqa: E402
from velodrome.engines.torch.reducers import FlatLayout, SharedMemoryReducer  # noqa: E402
from velodrome.engines.torch.tasks.base import task_class  # noqa: E402
from velodrome.offers.world import World  # noqa: E402
from velodrome.spec.job import Job  # noqa: E402
from velodrome.spec.resolve import resolve  # noqa: E402
from velodrome.worker.context import Context  # noqa: E402
from velodrome.worker.emitter import LineEmitter  # noqa: E402

#: Every wait of the test; none of them decides anything.
SECONDS = 60
#: How long the first process is given to continue too early, which it must not.
TOO_EARLY_SECONDS = 1.0


def learner_of(rank: int, group: Group, data: Path, folder: Path) -> AllReduceLearner:
    job = resolve(Job(model="dense-128", strategy="allreduce", workers=2, batch_size=30, optimizer="adam", ema=0.9))
    context = Context(job, World.alone(), folder, LineEmitter(lambda line: None, "worker", rank), threads=1)
    context.data = read_data(str(data))
    cpu = torch.device("cpu")
    return AllReduceLearner(context, task_class(context).network(context, cpu), Threads(group, rank), cpu)


def test_a_late_process_does_not_put_its_first_weights_in_place_of_those_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late one moves its parameters into the shared memory after the first has loaded the checkpoint there."""
    data, group, late = write_data(tmp_path / "data.npz"), Group(2), threading.local()
    written, moved, continued = threading.Event(), threading.Event(), threading.Event()
    move = FlatLayout.move

    def move_late(self: FlatLayout, parameters: Any, buffer: Any) -> None:
        if getattr(late, "here", False):
            assert written.wait(SECONDS)
        move(self, parameters, buffer)

    monkeypatch.setattr(FlatLayout, "move", move_late)
    stored: dict[str, Any] = {}

    def first() -> dict[str, Any]:
        learner = learner_of(0, group, data, tmp_path)
        assert isinstance(learner._reducer, SharedMemoryReducer)
        for name, value in learner.state().items():
            other = name.startswith(("model.", "optimizer.mean", "optimizer.ema.0"))
            stored[name] = value + 1 if other else value.copy()
        load = learner._optimizer.load

        def load_and_tell(state: Any) -> None:
            load(state)
            written.set()

        learner._optimizer.load = load_and_tell
        learner.load(stored)
        assert moved.wait(SECONDS)
        found = {name: value.copy() for name, value in learner.state().items()}  # what the next step computes with
        continued.set()
        return found

    def second() -> None:
        late.here = True
        learner = learner_of(1, group, data, tmp_path)
        moved.set()
        continued.wait(TOO_EARLY_SECONDS)
        learner.load(stored)

    with ThreadPoolExecutor(2) as pool:
        (found, _) = [each.result(SECONDS) for each in (pool.submit(first), pool.submit(second))]
    assert found.keys() == stored.keys()
    for name, value in stored.items():
        assert (found[name] == value).all(), name

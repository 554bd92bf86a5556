"""One process that trains, inside the test: what it does with models that keep state or draw random numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import write_data
from driver_process import read_data

from velodrome.catalog.world import World
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.training import loop
from velodrome.training.context import Context, LineEmitter
from velodrome.transport.base import Alone

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(autouse=True)
def _models(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def context_of(job: Job, data: Path, folder: Path) -> Context:
    emitter = LineEmitter(lambda line: None, "worker", 0)
    context = Context(resolve(job), World.alone(), folder, emitter, threads=1)
    context.data = read_data(str(data))
    return context


def test_a_model_may_keep_tensors_from_an_evaluation_for_the_next_epoch(data, tmp_path) -> None:
    from velodrome.engines.torch.learner import TorchLearner
    from velodrome.engines.torch.network import task_of_job

    context = context_of(Job(model="torch_nets:caching", epochs=2, batch_size=30), data, tmp_path)
    cpu = torch.device("cpu")
    network = task_of_job(context).network(cpu)
    loop.run(context, TorchLearner(context, network, Alone(), cpu))
    assert context.status.steps == 6


def test_batches_that_are_added_up_are_computed_apart_and_combined_once(data, tmp_path) -> None:
    """Memory is that of the smaller batch, and gradients are exchanged once for each update."""
    from velodrome.engines.torch.learner import TorchLearner
    from velodrome.engines.torch.network import task_of_job

    combined = []

    class Counting(TorchLearner):
        def _gradients(self, loss):
            combined.append(loss)
            return super()._gradients(loss)

    context = context_of(Job(model="dense-128", epochs=1, batch_size=10, accumulate=3), data, tmp_path)
    cpu, sizes = torch.device("cpu"), []
    network = task_of_job(context).network(cpu)

    def note(model, inputs) -> None:
        if model.training:
            sizes.append(len(inputs[0]))

    network.model.register_forward_pre_hook(note)
    loop.run(context, Counting(context, network, Alone(), cpu))
    assert sizes == [10] * 9
    assert len(combined) == context.status.steps == 3


def test_a_backward_pass_that_needs_other_processes_is_marked_in_every_batch_that_is_added_up(data, tmp_path) -> None:
    from velodrome.engines.torch.network import task_of_job
    from velodrome.engines.torch.strategies.sharding import DividedLearner

    context = context_of(Job(model="dense-128", epochs=1, batch_size=10, accumulate=3), data, tmp_path)
    cpu, marked = torch.device("cpu"), []
    network = task_of_job(context).network(cpu)
    next(network.model.parameters()).register_hook(lambda gradient: marked.append(context.status.waiting))
    loop.run(context, DividedLearner(context, network, Alone(), cpu))
    assert len(marked) > context.status.steps
    assert all(marked)

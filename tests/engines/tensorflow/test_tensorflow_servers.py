"""The parameter-server strategy: exact with one worker, exact in its counts with more, and never left waiting."""

from __future__ import annotations

import signal
import socket
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from driver import Started, finish, largest_difference, members_of, start

from velodrome.job.resolve import resolve

pytestmark = pytest.mark.integration

ROWS = [
    (1, "sgd", "float64"),
    (3, "sgd", "float64"),
    (2, "momentum", "float64"),
    *(pytest.param(servers, kind, dtype, marks=pytest.mark.slow) for servers, kind, dtype in [
        (2, "sgd", "float64"), (1, "sgd", "float32"), (2, "sgd", "float32"), (3, "sgd", "float32"),
        (3, "adam", "float32"),
    ]),
]


@pytest.mark.quick("2-momentum-float64")
@pytest.mark.parametrize(("servers", "optimizer", "dtype"), ROWS)
def test_one_worker_ends_with_the_weights_of_one_process(
    train: Any, servers: int, optimizer: str, dtype: str
) -> None:
    asked = {"model": "keras_nets:wide", "optimizer": optimizer, "dtype": dtype, "learning_rate": 0.01}
    alone = train(strategy="single", **asked)
    served = train(strategy="parameter-server", workers=1, servers=servers, **asked)
    assert largest_difference(alone.state, served.state) < {"float64": 1e-9, "float32": 1e-5}[dtype]
    assert served.result["test"]["correct"] == alone.result["test"]["correct"]


@pytest.mark.slow
def test_a_long_job_whose_steps_stand_one_after_the_other_in_the_graph_ends_with_the_same_weights(train: Any) -> None:
    """13 steps an epoch, the last with fewer examples, scheduled by threes: one step first, then four closures."""
    asked = {"model": "dense-128", "optimizer": "momentum", "dtype": "float64", "learning_rate": 0.01,
             "batch_size": 7, "epochs": 50}
    alone = train(strategy="single", **asked)
    served = train(strategy="parameter-server", workers=1, servers=1, **asked)
    assert served.state["iterations"] == 650
    assert largest_difference(alone.state, served.state) < 1e-9


@pytest.mark.parametrize(("steps", "epoch", "workers", "size"), [
    (4210, 421, 2, 19),  # 22 closures and 3 steps
    (800, 421, 2, 17),  # 24 closures and 13 steps, then 22 closures and 5 steps
    (8000, 400, 2, 20), (700, 7, 1, 1), (600, 1, 2, 1), (1000, 1000, 5, 20),
])  # fmt: skip
def test_closures_are_as_long_as_lets_the_workers_end_together(steps: int, epoch: int, workers: int, size: int) -> None:
    pytest.importorskip("tensorflow")
    from velodrome.engines.tensorflow.strategies.dispatchers import balanced_size

    assert balanced_size(steps, epoch, max(1, min(20, epoch // (4 * workers))), workers) == size


def test_an_epoch_asks_for_two_graphs_however_small_its_last_batch_is() -> None:
    tf = pytest.importorskip("tensorflow")
    from velodrome.engines.tensorflow.strategies.dispatchers import IndexDispatcher
    from velodrome.tasks.schedule import by_data

    asked: list[tuple[Any, ...]] = []
    dispatcher = IndexDispatcher.__new__(IndexDispatcher)
    images = np.zeros((1000, 2, 2, 1), np.uint8)
    dispatcher._context = SimpleNamespace(
        job=SimpleNamespace(workers=2, epochs=9, steps=None), status=SimpleNamespace(steps=0),
        data=SimpleNamespace(train=SimpleNamespace(images=images)),
    )
    dispatcher._network = SimpleNamespace(shapes=[(4, 10), (10,)])
    for name in ("_iterations", "_staleness_sum", "_staleness_max"):
        setattr(dispatcher, name, tf.Variable(0, dtype=tf.int64))
    dispatcher._train, dispatcher._seed_offset, dispatcher._stock = None, 0, False
    dispatcher._data = SimpleNamespace(is_kept=lambda part: True, source=lambda part, indices: (None, indices))
    dispatcher._closures = SimpleNamespace(
        capacity=3, results=lambda left: [], schedule=lambda key, function, *arguments: asked.append(arguments)
    )
    dispatcher.begin_epoch(by_data(1000, 7, 1, seed=1, epoch=1))
    dispatcher.train(0, 60)
    dispatcher.train(60, 143)
    dispatcher.end_epoch()

    kinds = {(unrolled, order.shape[0]) for _, order, unrolled in asked}
    assert len(kinds) == 2
    orders = [order.numpy() for _, order, _ in asked]
    seen = np.concatenate([order[3 : 3 + order[1]] for order in orders])
    assert sorted(seen) == list(range(1000))


def test_large_weights_are_split_over_the_servers_and_small_ones_are_not() -> None:
    tf = pytest.importorskip("tensorflow")
    from velodrome.engines.tensorflow.strategies.parameter_server import partitioner

    split = partitioner(3)
    assert list(split(tf.TensorShape([784, 300]), tf.float32)) == [3, 1]
    assert list(split(tf.TensorShape([64, 2048]), tf.float32)) == [2, 1]
    assert list(split(tf.TensorShape([300, 100]), tf.float32)) == [1, 1]
    finer = partitioner(3, smallest=2**14)
    assert list(finer(tf.TensorShape([300, 100]), tf.float32)) == [3, 1]


def test_the_smallest_part_of_the_weights_is_an_option_where_they_are_split() -> None:
    from velodrome.errors import BadRequest
    from velodrome.job.job import make_job
    from velodrome.job.resolve import resolve

    asked = {"engine": "tensorflow", "strategy": "parameter-server", "min_shard_bytes": 4096}
    assert resolve(make_job(asked)).model_dump()["min_shard_bytes"] == 4096
    assert "min_shard_bytes" not in resolve(make_job({**asked, "min_shard_bytes": None})).model_dump()
    with pytest.raises(BadRequest, match="stock keeps every weight on one server"):
        resolve(make_job({**asked, "implementation": "stock"}))
    with pytest.raises(BadRequest, match="does not support this option"):
        resolve(make_job({**asked, "strategy": "mirrored"}))


def test_two_workers_see_every_example_once_an_epoch(train: Any) -> None:
    ran = train(strategy="parameter-server", workers=2, servers=1, batch_size=7, optimizer="sgd", epochs=3)
    (chief,) = [process for process in ran.processes if process.role == "chief"]
    assert [epoch["train"]["total"] for epoch in chief.of_kind("epoch")] == [91, 91, 91]
    assert [epoch["validation"]["total"] for epoch in chief.of_kind("epoch")] == [23, 23, 23]
    assert [event["updates"] for event in chief.of_kind("staleness")] == [13, 13, 13]
    assert ran.state["iterations"] == 39


def _wait_for_epoch(folder: Path, epochs: int) -> None:
    deadline = time.monotonic() + 200
    while not list(folder.glob(f"checkpoints/epoch-{epochs:04d}.safetensors")):
        assert time.monotonic() < deadline, "no checkpoint in time"
        time.sleep(0.05)


def _kill(started: list[Started], role: str, rank: int) -> None:
    next(each for each in started if (each.member.role, each.member.rank) == (role, rank)).kill()


def _chief(ran: Any) -> Any:
    return next(process for process in ran.processes if process.role == "chief")


def test_with_keep_going_the_others_do_a_lost_workers_work(make_job: Any, data: Path, tmp_path: Path) -> None:
    asked = make_job(strategy="parameter-server", workers=2, batch_size=1, epochs=12, keep_going=True, optimizer="sgd")
    started = start(asked, data, tmp_path)
    _wait_for_epoch(tmp_path, 2)
    _kill(started, "worker", 1)
    ran = finish(started, tmp_path)
    chief = _chief(ran)
    assert chief.code == 0, ran.logs
    assert {epoch["train"]["total"] for epoch in chief.of_kind("epoch")} == {91}
    assert len(chief.of_kind("epoch")) == 12


class _Scheduled:
    """A closure's value whose worker is lost before it is fetched, as often as asked."""

    def __init__(self, value: Any, errors: list[Exception]) -> None:
        self._value, self._errors = value, errors

    def fetch(self) -> Any:
        if self._errors:
            raise self._errors.pop()
        return self._value


@pytest.mark.parametrize(("keep_going", "losses", "code", "again"), [
    (True, 1, "Unavailable", True), (True, 2, "Unavailable", True), (True, 3, "Unavailable", False),
    (False, 1, "Unavailable", False), (True, 1, "InvalidArgument", False),
])
def test_a_closure_whose_result_is_lost_with_its_worker_runs_again(
    keep_going: bool, losses: int, code: str, again: bool
) -> None:
    tf = pytest.importorskip("tensorflow")
    from velodrome.engines.tensorflow.strategies.parameter_server import Closures

    kind = getattr(tf.errors, f"{code}Error")
    errors, asked = [kind(None, None, "failed to connect to all addresses") for _ in range(losses)], []

    def schedule(function: Any, args: Any) -> _Scheduled:
        asked.append(args)
        return _Scheduled(function(*args), errors)

    context = SimpleNamespace(
        job=SimpleNamespace(workers=2, keep_going=keep_going), status=SimpleNamespace(seen=0), waiting=nullcontext
    )
    monitor = SimpleNamespace(check=lambda keep_going: None)
    closures = Closures(SimpleNamespace(schedule=schedule), monitor, context)  # type: ignore[arg-type]
    closures.schedule("key", lambda value: [value], 7)
    if again:
        assert [(key, int(value)) for key, (value,) in closures.results(0)] == [("key", 7)]
        assert asked == [(7,)] * (losses + 1)
        assert context.status.seen == 1
    else:
        with pytest.raises(kind):
            closures.results(0)


@pytest.mark.parametrize(("role", "keep_going"), [
    ("server", True), pytest.param("worker", False, marks=pytest.mark.slow),
])
def test_the_chief_ends_when_it_cannot_go_on(
    make_job: Any, data: Path, tmp_path: Path, role: str, keep_going: bool
) -> None:
    asked = make_job(
        strategy="parameter-server", workers=1, batch_size=1, epochs=2000, keep_going=keep_going, optimizer="sgd"
    )
    started = start(asked, data, tmp_path)
    _wait_for_epoch(tmp_path, 1)
    _kill(started, role, 0)
    ran = finish(started, tmp_path)
    assert _chief(ran).code == 1, ran.logs
    (error,) = _chief(ran).of_kind("error")
    assert error["cause"] == "peer"
    assert not [process for process in ran.processes if process.code == -signal.SIGABRT], ran.logs


def test_a_synchronous_worker_says_that_it_lost_its_peer(make_job: Any, data: Path, tmp_path: Path) -> None:
    started = start(make_job(strategy="multi-worker-mirrored", workers=2, batch_size=2, epochs=500), data, tmp_path)
    _wait_for_epoch(tmp_path, 1)
    _kill(started, "worker", 1)
    survivor, _ = finish(started, tmp_path).processes
    assert survivor.code == 1, survivor.log
    (error,) = survivor.of_kind("error")
    assert error["cause"] == "peer"


def test_who_does_not_come_is_named(make_job: Any, data: Path, tmp_path: Path) -> None:
    asked = resolve(make_job(strategy="multi-worker-mirrored", workers=2, start_timeout=2))
    members = members_of(asked)
    started = start(asked, data, tmp_path, members=members, only=[0])
    (process,) = finish(started, tmp_path).processes
    (error,) = process.of_kind("error")
    assert f"worker 1 (127.0.0.1:{members[1].port}) did not connect within 2 s" in error["message"]


def test_a_taken_port_is_said_to_be_taken(make_job: Any, data: Path, tmp_path: Path) -> None:
    asked = resolve(make_job(strategy="parameter-server", workers=1, servers=1))
    members = [member for member in members_of(asked) if member.role == "worker"]
    with socket.create_server(("0.0.0.0", members[0].port)):
        (process,) = finish(start(asked, data, tmp_path, members=members), tmp_path).processes
    (error,) = process.of_kind("error")
    assert error["cause"] == "port"
    assert str(members[0].port) in error["message"]

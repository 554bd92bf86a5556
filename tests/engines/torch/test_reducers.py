"""Whatever reduces the gradients, a step is the step by their sum; here the processes are threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from thread_transport import Group, Threads  # noqa: E402

from velodrome.engines.torch.fused_optimizer import FlatOptimizer, FusedOptimizer  # noqa: E402
from velodrome.engines.torch.optimizer import StockOptimizer, clip, squared_norm  # noqa: E402
from velodrome.engines.torch.strategies.allreduce import AllReduceReducer, FlatLayout, SharedMemoryReducer  # noqa: E402
from velodrome.job.job import Job  # noqa: E402

STEPS = 3
SHAPES = [(40, 5), (3,), (6, 2, 3, 3), (1,), (70, 7)]


def parameters() -> list[torch.nn.Parameter]:
    drawn = torch.Generator().manual_seed(1)
    made = [torch.nn.Parameter(torch.randn(shape, generator=drawn, dtype=torch.float64)) for shape in SHAPES]
    made[2].data = made[2].data.to(memory_format=torch.channels_last)
    return made


def gradients(step: int, rank: int) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(100 * step + rank)
    made = [torch.randn(shape, generator=drawn, dtype=torch.float64) for shape in SHAPES]
    made[0] = made[0].t().contiguous().t()  # lies in memory otherwise than its parameter
    return made


def job(optimizer: str, kind: str = "") -> Job:
    implementation = "stock" if kind == "stock" else "velodrome"
    more = {"weight_decay": 0.3, "ema": 0.8} if optimizer == "adamw" else {}
    return Job(optimizer=optimizer, dtype="float64", learning_rate=0.1, implementation=implementation, **more)


def alone(size: int, optimizer: str, idle: int | None, maximum: float | None) -> list[torch.Tensor]:
    """What one process makes of the reducer."""
    mine = parameters()
    stepping = FusedOptimizer(job(optimizer), list(mine))
    for step in range(STEPS):
        parts = [gradients(step, rank) for rank in range(size) if rank != idle]
        summed = [torch.empty_like(p).copy_(sum(each)) for p, each in zip(mine, zip(*parts, strict=True), strict=True)]
        if maximum:
            clip(summed, squared_norm(summed) ** 0.5, maximum)
        stepping.step(summed)
    return [parameter.detach() for parameter in mine]


Given = Callable[[int, int], list[torch.Tensor | None] | None]


def reducing(kind: str, size: int, optimizer: str, given: Given, maximum: float | None, steps: int = STEPS, *,
             may_skip: bool = True, stored: dict[str, torch.Tensor] | None = None):
    """What processes make of the gradients that each is given, by step and rank: parameters and optimizer state."""
    group = Group(size)

    def work(rank: int):
        mine, transport, wanted = parameters(), Threads(group, rank), job(optimizer, kind)
        if kind == "shared-memory":
            memory = SharedMemoryReducer.allocate(transport, mine, wanted, may_skip=may_skip)
            reducer = SharedMemoryReducer(transport, mine, wanted, memory)
        else:
            reducer = AllReduceReducer(transport, mine, wanted, may_skip=may_skip)
        assert isinstance(reducer.optimizer, StockOptimizer if kind == "stock" else FlatOptimizer)
        reducer.optimizer.load(stored or {})
        transport.barrier()
        for step in range(steps):
            reducer.write(given(step, rank))
            summed = reducer.reduce()
            if maximum:
                clip(summed, reducer.norm(summed), maximum)
            reducer.optimizer.step(summed)
            reducer.finish()
        return mine, {name: value.clone() for name, value in reducer.optimizer.state().items()}

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, range(size)))


def together(kind: str, size: int, optimizer: str, idle: int | None, maximum: float | None, *, may_skip: bool = False):
    return reducing(kind, size, optimizer, lambda step, rank: None if rank == idle else gradients(step, rank), maximum,
                    may_skip=may_skip)


@pytest.mark.parametrize("may_skip", [False, True])
@pytest.mark.parametrize("maximum", [None, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("kind", ["all-reduce", "shared-memory", "stock"])
def test_a_step_is_the_step_by_the_sum(kind, size, optimizer, maximum, may_skip):
    expected = alone(size, optimizer, None, maximum)
    for mine, _ in together(kind, size, optimizer, None, maximum, may_skip=may_skip):
        for parameter, wanted in zip(mine, expected, strict=True):
            assert parameter.stride() == wanted.stride()
            assert torch.allclose(parameter, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["all-reduce", "shared-memory", "stock"])
def test_decayed_weights_and_their_average_are_those_of_one_process(kind):
    mine = parameters()
    stepping = FusedOptimizer(job("adamw"), list(mine))
    for step in range(STEPS):
        parts = [gradients(step, rank) for rank in range(3)]
        stepping.step([torch.empty_like(p).copy_(sum(each)) for p, each in zip(mine, zip(*parts, strict=True),
                                                                               strict=True)])
    expected, layout = stepping.average.averages, FlatLayout(mine)
    for theirs, state in together(kind, 3, "adamw", None, None):
        assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(theirs, mine, strict=True))
        averages = layout.views(state["ema.0"]) if kind != "stock" else [state[f"ema.{n}"] for n in range(len(mine))]
        assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(averages, expected, strict=True))
        assert not torch.allclose(averages[0], mine[0])


@pytest.mark.parametrize("kind", ["all-reduce", "shared-memory", "stock"])
@pytest.mark.parametrize("idle", [0, 2])
def test_a_process_without_gradients_adds_zeros(kind, idle):
    expected = alone(3, "adam", idle, None)
    for mine, _ in together(kind, 3, "adam", idle, None):
        assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(mine, expected, strict=True))


def test_every_process_has_the_whole_state_of_the_optimizer():
    states = [state for _, state in together("shared-memory", 3, "adam", None, None)]
    sent = together("all-reduce", 3, "adam", None, None)[0][1]
    for state in states:
        assert state.keys() == sent.keys()
        assert all(torch.allclose(state[name], sent[name], rtol=0, atol=1e-12) for name in sent)


def some(step: int, rank: int) -> list[torch.Tensor | None] | None:
    """Gradients of a model that does not use all of its parameters in each step, or not in each process.

    Parameter 1 is never used, 2 only in process 0, 3 in every other step, 4 in the last process and not in step 3.
    Process 1 has no examples in step 4.
    """
    if (step, rank) == (4, 1):
        return None
    made: list[torch.Tensor | None] = list(gradients(step, rank))
    made[1] = None
    if rank != 0:
        made[2] = None
    if step % 2:
        made[3] = None
    if rank == 0 or step == 3:
        made[4] = None
    return made


def stock(size: int, optimizer: str, maximum: float | None, steps: int) -> list[torch.Tensor]:
    """What `torch.optim` makes of the sums, with no gradient where no process has one."""
    mine = parameters()
    chosen = {"sgd": lambda: torch.optim.SGD(mine, 0.1), "momentum": lambda: torch.optim.SGD(mine, 0.1, momentum=0.9),
              "adam": lambda: torch.optim.Adam(mine, 0.1)}
    stepping = chosen[optimizer]()
    for step in range(steps):
        ranks = [given for rank in range(size) if (given := some(step, rank)) is not None]
        for number, parameter in enumerate(mine):
            parts = [given[number] for given in ranks if given[number] is not None]
            parameter.grad = torch.empty_like(parameter).copy_(sum(parts)) if parts else None
        if maximum:
            torch.nn.utils.clip_grad_norm_(mine, maximum)
        stepping.step()
    return [parameter.detach() for parameter in mine]


@pytest.mark.parametrize("maximum", [None, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("kind", ["all-reduce", "shared-memory", "stock"])
def test_a_parameter_that_no_process_has_a_gradient_of_is_skipped_as_torch_optim_does(kind, size, optimizer, maximum):
    expected = stock(size, optimizer, maximum, steps=6)
    for mine, _ in reducing(kind, size, optimizer, some, maximum, steps=6):
        for parameter, wanted in zip(mine, expected, strict=True):
            # clip_grad_norm_ adds a millionth to the norm
            assert torch.allclose(parameter, wanted, rtol=0, atol=1e-5 if maximum else 1e-12)


@pytest.mark.parametrize("kind", ["all-reduce", "shared-memory"])
def test_the_steps_of_each_parameter_are_restored(kind):
    _, state = reducing(kind, 2, "adam", some, None, steps=4)[0]
    assert state["steps"].tolist() == [4, 0, 4, 2, 3]
    (mine, after), _ = reducing(kind, 2, "adam", gradients, None, steps=1, stored=state)
    assert after["steps"].tolist() == [5, 1, 5, 3, 4]
    reference = parameters()
    stepping = FusedOptimizer(job("adam"), list(reference))
    for name, slot in (("mean", stepping._slots["mean"]), ("square", stepping._slots["square"])):
        for view, kept in zip(slot, FlatLayout(reference).views(state[f"{name}.0"]), strict=True):
            view.copy_(kept)
    stepping.state()["steps"].copy_(state["steps"])
    stepping.step([torch.empty_like(p).copy_(sum(each)) for p, each in zip(
        reference, zip(gradients(0, 0), gradients(0, 1), strict=True), strict=True)])
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(mine, reference, strict=True))


@pytest.mark.parametrize("kind", ["all-reduce", "shared-memory"])
def test_the_state_of_an_older_checkpoint_has_one_number_of_steps_for_all(kind):
    _, state = reducing(kind, 2, "adam", gradients, None, steps=4)[0]
    whole, _ = reducing(kind, 2, "adam", gradients, None, steps=1, stored=state)
    older = state | {"steps": torch.tensor(4.0)}
    for mine, wanted in zip(reducing(kind, 2, "adam", gradients, None, steps=1, stored=older)[0][0], whole[0],
                            strict=True):
        assert torch.equal(mine, wanted)

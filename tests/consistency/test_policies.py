"""Each policy keeps the promise of its consistency model, whatever the order in which workers come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velodrome.catalog.exchange import Consistency
from velodrome.consistency.policies import Clocks, Dynamic, Policy, policy_of

pytestmark = pytest.mark.unit


class Simulation:
    """Workers that compute steps at their own speed, and one server's policy."""

    def __init__(self, policy: Policy, workers: int) -> None:
        self.policy, self.clocks = policy, Clocks.of(workers)
        #: Workers that compute a step, with what each of them had read: the pushes of all.
        self.computing: dict[int, tuple[int, ...]] = dict.fromkeys(range(workers), (0,) * workers)
        self.waiting: list[int] = []
        self.largest_lead = 0

    def push(self, worker: int, now: float) -> None:
        """A worker ends its step; afterwards all begin that may."""
        del self.computing[worker]
        self.clocks.push(worker, now)
        self.waiting.append(worker)
        self._let_begin()

    def leave(self, worker: int) -> None:
        self.computing.pop(worker, None)
        if worker in self.waiting:
            self.waiting.remove(worker)
        self.clocks.finish(worker)
        self._let_begin()

    def _let_begin(self) -> None:
        for waiting in list(self.waiting):
            if self.policy.may_begin(waiting, self.clocks):
                self.waiting.remove(waiting)
                self.largest_lead = max(self.largest_lead, self.clocks.lead(waiting))
                self.computing[waiting] = tuple(self.clocks.pushed)


def orders(policy_text: str, workers: int, pushes: int) -> Iterator[Simulation]:
    """The simulation after every possible order of so many pushes."""
    chosen: list[list[int]] = [[]]
    for _ in range(pushes):
        following = []
        for order in chosen:
            simulation = replayed(policy_text, workers, order)
            yield simulation
            following += [[*order, worker] for worker in simulation.computing]
        chosen = following
    yield from (replayed(policy_text, workers, order) for order in chosen)


def replayed(policy_text: str, workers: int, order: list[int]) -> Simulation:
    simulation = Simulation(policy_of(Consistency.parse(policy_text)), workers)
    for moment, worker in enumerate(order):
        simulation.push(worker, float(moment))
    return simulation


@pytest.mark.parametrize(("text", "bound"), [("bsp", 0), ("ssp:0", 0), ("ssp:1", 1), ("ssp:3", 3), ("dssp:1..3", 3)])
def test_no_worker_computes_more_than_the_bound_ahead_of_the_slowest(text, bound):
    reached = set()
    for simulation in orders(text, workers=3, pushes=7):
        assert simulation.largest_lead <= bound
        reached.add(simulation.largest_lead)
    assert max(reached) == bound or text.startswith("dssp"), "the bound is used"


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_a_step_under_ssp_has_read_every_update_that_is_older_than_the_bound(bound):
    """A worker that computes step c has read all updates stamped c - S - 1 and before, and all of its own."""
    for simulation in orders(f"ssp:{bound}", workers=3, pushes=6):
        for worker, read in simulation.computing.items():
            clock = simulation.clocks.pushed[worker]
            assert read[worker] == clock
            assert all(pushed >= clock - bound for pushed in read)


@pytest.mark.parametrize("text", ["bsp", "asp", "ssp:0", "ssp:2", "dssp:0..2", "dssp:2..2"])
def test_somebody_always_computes_and_everybody_who_waits_is_waiting_for_one_that_does(text):
    for simulation in orders(text, workers=3, pushes=6):
        assert simulation.computing
        for waiting in simulation.waiting:
            blockers = simulation.policy.blockers(waiting, simulation.clocks)
            assert set(blockers) <= simulation.computing.keys()
            assert blockers


def test_nobody_waits_under_asp():
    for simulation in orders("asp", workers=3, pushes=5):
        assert not simulation.waiting


def test_a_worker_that_has_finished_holds_up_nobody():
    simulation = replayed("ssp:1", 2, [0, 0])
    assert simulation.waiting == [0]
    simulation.leave(1)
    assert simulation.waiting == []


def test_dssp_with_equal_bounds_is_ssp():
    for one, other in zip(orders("ssp:2", 3, 6), orders("dssp:2..2", 3, 6), strict=True):
        assert one.computing.keys() == other.computing.keys()


@settings(max_examples=60, deadline=None)
@given(
    low=st.integers(0, 3), extra=st.integers(0, 6), seconds=st.lists(st.floats(0.1, 9), min_size=2, max_size=5),
    pushes=st.integers(1, 60),
)
def test_the_bound_of_dssp_stays_in_its_range(low, extra, seconds, pushes):
    """Workers of any speeds, each of which computes its steps in the same time."""
    policy = Dynamic(low, low + extra)
    simulation = Simulation(policy, len(seconds))
    due = dict(enumerate(seconds))
    for _ in range(pushes):
        worker = min(simulation.computing, key=due.__getitem__)
        now, before = due[worker], set(simulation.computing)
        simulation.push(worker, now)
        for begun in set(simulation.computing) - before | {worker} & simulation.computing.keys():
            due[begun] = now + seconds[begun]
        assert simulation.largest_lead <= low + extra


def test_dssp_lets_the_fastest_worker_arrive_with_the_slowest():
    """The paper's example in our numbers: pushes every second against one every 2.5 seconds, the next of them at 5."""
    clocks = Clocks(pushed=[4, 1], training=[True, True], times=[[2.0, 3.0], [0.0, 2.5]])
    policy = Dynamic(2, 6)
    assert clocks.lead(0) == 3
    # Its pushes come at 3 (it waits now), 4, 5, 6 and 7; those of the slowest at 5, 7.5 and later.
    assert policy.extra_steps(0, clocks) == 2


def test_dssp_grants_nothing_before_it_has_seen_two_pushes_of_both():
    clocks = Clocks(pushed=[2, 1], training=[True, True], times=[[1.0, 2.0], [1.5]])
    assert Dynamic(0, 4).extra_steps(0, clocks) == 0

"""Which runs of a race form a block."""

from __future__ import annotations

import pytest

from synthetic_races import repeated, result
from typed_judge import as_result, compare, crashed_always
from velodrome.judge.blocks import blocks_of
from velodrome.judge.compare import Row
from velodrome.judge.measures import THROUGHPUT

pytestmark = pytest.mark.unit


def rates(row: Row) -> dict[tuple[int, int], float]:
    return row.by_block(THROUGHPUT.read)


def test_runs_of_the_same_seed_are_one_block_whatever_is_missing() -> None:
    one, two = compare([*repeated([100, 101, 102], strategy="single"), *repeated([190, 191, 192], workers=2)[1:]])
    assert rates(one) == {(1, 0): 100, (2, 0): 101, (3, 0): 102}
    assert rates(two) == {(2, 0): 191, (3, 0): 192}


def test_a_failed_run_keeps_its_block() -> None:
    lost = result("ddp", 2, 1.0, status="failed", seed=2)
    row = compare([*(made for made in repeated([190, 191, 192], workers=2) if made["seed"] != 2), lost])[0]
    assert rates(row) == {(1, 0): 190, (3, 0): 192}
    assert row.blocks[len(row.results):] == ((2, 0),)
    assert row.failures == (as_result(lost),)


def test_a_failure_is_in_the_block_in_which_it_was_run_again() -> None:
    again = result("ddp", 2, status="failed", seed=2)
    assert compare([*repeated([190, 191, 192], workers=2), again])[0].blocks == ((1, 0), (2, 0), (3, 0), (2, 0))


def test_configurations_with_seeds_of_their_own_are_paired_in_order() -> None:
    first = [as_result(result("single", seed=seed)) for seed in (3, 1, 2)]
    second = [as_result(result("ddp", 2, seed=seed)) for seed in (11, 12, 13)]
    assert blocks_of({"first": first, "second": second}, {}) == {
        "first": ((2, 0), (0, 0), (1, 0)), "second": ((0, 0), (1, 0), (2, 0)),
    }


def test_runs_without_a_seed_and_runs_that_share_one_are_counted() -> None:
    older = [as_result({key: value for key, value in result().items() if key != "seed"}) for _ in range(2)]
    assert blocks_of({"older": older}, {}) == {"older": ((0, 0), (0, 1))}
    twice = [as_result(result(seed=2)) for _ in range(2)]
    assert blocks_of({"twice": twice}, {}) == {"twice": ((2, 0), (2, 1))}


@pytest.mark.parametrize(
    ("status", "cause", "crashed"),
    [("failed", "engine", 1), ("failed", "exit", 1), ("failed", "stall", 1), ("failed", "disk", 0),
     ("failed", "request", 0), ("interrupted", "interrupt", 0)],
)
def test_a_run_that_somebody_ended_did_not_crash(status: str, cause: str, crashed: int) -> None:
    ended = result("ddp", 2, status=status, seed=4, error={"message": "…", "cause": cause})
    row = compare([*repeated([100, 101, 99], workers=2), ended])[0]
    assert (row.failed, row.crashed, row.attempts) == (1, crashed, 3 + crashed)


def test_a_configuration_that_always_crashed_has_no_row_but_a_name_and_a_count() -> None:
    results = [*repeated([100, 101], strategy="single"), *repeated([1, 1], workers=2, status="failed"),
               result("ddp", 4, status="interrupted")]
    assert [row.name for row in compare(results)] == ["torch/single with 1 worker"]
    assert crashed_always(results) == {"torch/ddp with 2 workers": 2}

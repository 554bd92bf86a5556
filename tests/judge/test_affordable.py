"""What a budget can settle: who is kept, who is left out, and how much would be enough."""

from __future__ import annotations

import math

import pytest

from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.job.values import seconds_of
from velodrome.judge.budget import Contender, afford, contenders, cut_short
from velodrome.judge.phrases import as_option

pytestmark = pytest.mark.unit


def one(key: str, seconds: float = 10.0, promise: float = 1.0, *, done: int = 0, task: str = "",
        guessed: bool = False) -> Contender:
    return Contender(key, task, key.startswith("single"), seconds, done, promise, guessed)


FOUR = [one("single", promise=0.5), one("ddp", promise=3.0), one("zero1", promise=2.0), one("ps", promise=1.0)]


def test_everything_is_kept_that_fits_three_times() -> None:
    found = afford(FOUR, 120.0)
    assert (found.kept, found.left_out, found.settles) == (("single", "ddp", "zero1", "ps"), (), True)
    assert (found.whole, found.least) == (120.0, 60.0)
    assert afford(FOUR, math.inf) == found


@pytest.mark.parametrize(("left", "kept"), [(119.0, "single ddp zero1"), (89.0, "single ddp"), (60.0, "single ddp")])
def test_the_least_promising_are_left_out_and_the_baseline_never(left: float, kept: str) -> None:
    found = afford(FOUR, left)
    assert found.settles
    assert found.kept == tuple(kept.split())
    assert set(found.kept) | set(found.left_out) == {"single", "ddp", "zero1", "ps"}
    assert found.left_out[0] == "ps", "the least promising first"


def test_where_no_two_fit_nothing_is_left_out_and_the_least_budget_is_known() -> None:
    found = afford(FOUR, 59.0)
    assert (found.settles, found.left_out, found.least) == (False, (), 60.0)
    assert found.kept == ("single", "ddp", "zero1", "ps")


def test_what_ran_already_needs_no_time() -> None:
    members = [one("single", done=3), one("ddp", done=2, promise=2.0), one("zero1", done=0)]
    found = afford(members, 15.0)
    assert (found.kept, found.left_out, found.whole) == (("single", "ddp"), ("zero1",), 40.0)
    assert afford(members, -5.0).settles is False


def test_a_slow_configuration_leaves_room_for_a_faster_one_behind_it() -> None:
    found = afford([one("single"), one("slow", 100.0, promise=9.0), one("ddp", promise=2.0)], 60.0)
    assert (found.kept, found.left_out) == (("single", "ddp"), ("slow",))


#: An engine that was measured, and another one that is guessed to be three times as fast.
HALF_KNOWN = [
    one("single", 100.0), one("ddp", 90.0, promise=1.1), one("zero1", 110.0, promise=0.9),
    one("single of tf", 30.0, promise=3.0, guessed=True), one("mirrored", 25.0, promise=3.5, guessed=True),
]


@pytest.mark.parametrize(("left", "kept"), [
    (180.0, None), (389.0, None), (390.0, "single, single of tf"), (660.0, "single, single of tf, ddp"),
    (735.0, "single, single of tf, ddp"), (990.0, "single, single of tf, ddp, zero1"),
    (1065.0, "single, single of tf, ddp, zero1, mirrored"),
])
def test_what_was_measured_is_not_left_out_for_a_guess(left: float, kept: str | None) -> None:
    found = afford(HALF_KNOWN, left)
    assert (found.settles, found.least) == (kept is not None, 570.0)
    assert set(found.kept) == ({one.key for one in HALF_KNOWN} if kept is None else set(kept.split(", ")))
    assert found.kept[0] == "single", "of the baselines the measured one comes first"


def test_where_not_every_single_fits_those_stay_that_were_measured() -> None:
    members = [one("single of tf", 200.0, promise=3.0, guessed=True), *HALF_KNOWN[:3], HALF_KNOWN[4]]
    found = afford(members, 600.0)
    assert (found.kept, found.left_out) == (("single", "ddp"), ("mirrored", "zero1", "single of tf"))
    unmeasured = [one("single", 20.0, guessed=True), one("ddp", 10.0, guessed=True), one("zero1", 90.0, guessed=True)]
    assert afford(unmeasured, 100.0).kept == ("single", "ddp"), "where nothing was measured, guesses decide"


def test_a_budget_that_is_enough_for_two_keeps_two() -> None:
    members = [one("single a", promise=2.0), one("single b", 9.0), one("ddp", 5.0)]
    least = afford(members, 0.0).least
    assert least == 42.0
    assert afford(members, least).kept == ("single b", "ddp")


def test_every_task_keeps_something_to_compare() -> None:
    members = [one(f"{name} {task}", promise=promise + 10 * place, task=task)
               for place, task in enumerate("ab") for name, promise in (("single", 1.0), ("ddp", 3.0), ("ps", 2.0))]
    found = afford(members, 120.0)
    assert set(found.left_out) == {"ps a", "ps b"}
    lonely = afford([one("single a", task="a"), one("single b", task="b")], 1.0)
    assert (lonely.settles, lonely.left_out) == (True, ()), "there is nothing to settle"


def test_an_engine_with_several_single_has_its_best_as_the_baseline() -> None:
    jobs = {f"{strategy} {batch}": resolve(Job(engine="torch", strategy=strategy, batch_size=batch))
            for strategy in ("single", "ddp") for batch in (32, 128)}
    promise = {"single 32": 1.0, "single 128": 2.0, "ddp 32": 3.0, "ddp 128": 4.0}
    made = contenders(jobs, dict.fromkeys(jobs, 1.0), promise, {"ddp 32": 2})
    assert [found.key for found in made if found.baseline] == ["single 128"]
    assert {found.key: found.done for found in made}["ddp 32"] == 2
    assert len({found.task for found in made}) == 1


def test_gaps_before_the_third_repetition_show_whom_the_budget_left_out() -> None:
    begun = {"kept": [1, 2, 3, 4], "left out": [1], "beaten": [1, 2, 3], "never": [], "next": [1, 2, 3]}
    assert cut_short(begun) == {"left out"}
    assert cut_short({"first": [1], "second": [1, 2]}) == set(), "the second repetition may still run"


@pytest.mark.parametrize("seconds", [1.0, 17.0, 80.0, 95.0, 600.0, 4000.0, 5000.0, 7000.0, 100_000.0])
def test_a_suggested_budget_is_enough_and_can_be_typed(seconds: float) -> None:
    suggested = seconds_of(as_option(seconds))
    assert seconds < suggested < 1.5 * seconds + 10

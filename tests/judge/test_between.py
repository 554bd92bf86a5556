"""Two groups of configurations compared by `--between`: what is said where no range can be given."""

from __future__ import annotations

import pytest

from synthetic_races import beside, repeated
from velodrome.errors import BadRequest
from velodrome.judge.between import between
from velodrome.judge.compare import compare
from velodrome.judge.objective import ask
from verdict_questions import Runs

pytestmark = pytest.mark.unit


def sizes(*, load: float = 0.0, one: list[float] = [100, 101, 99]) -> Runs:  # noqa: B006 - not changed
    four = [4 * value for value in one]
    runs = [*repeated(one, workers=1), *repeated(four, workers=4)]
    return [beside(run, load) for run in runs] if load else runs


@pytest.mark.parametrize(("runs", "verdict", "why"), [
    (sizes(), "use workers=4: it was 4.0 times as fast as workers=1.",
     "3.9 to 4.0 times (95 % interval), over one pair of configurations, in 3 repetitions."),
    (sizes(one=[100]), "workers=4 was 4.0 times as fast as workers=1, which may be chance.",
     "the range is not known with one repetition, over one pair of configurations, in 1 repetition."),
    (sizes(load=1.4), "workers=4 was 4.0 times as fast as workers=1, which may be chance.",
     "the range is too wide to tell, over one pair of configurations, in 3 repetitions."),
])
def test_a_pair_is_answered_with_its_range_or_why_there_is_none(runs: Runs, verdict: str, why: str) -> None:
    found = between(ask(compare(runs), "throughput"), ("workers=1", "workers=4"))
    assert (found.verdict, found.why) == (verdict, why)


def test_an_unknown_name_is_answered_with_names_that_differ() -> None:
    with pytest.raises(BadRequest, match="for example workers=1 or workers=4"):
        between(ask(compare(sizes()), "throughput"), ("1", "4"))

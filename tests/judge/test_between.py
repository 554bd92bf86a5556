"""Two groups of configurations compared by `--between`: in which models, with which runs, and what is said."""

from __future__ import annotations

import pytest

from synthetic_races import beside, repeated
from typed_judge import compare, judge
from velodrome.errors import BadRequest
from velodrome.judge.candidates import ask
from velodrome.judge.criteria import Criteria
from velodrome.judge.pairs import between, between_tasks
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
    (sizes(load=1.4), "workers=4 was 4.0 times as fast as workers=1, which other programs may have caused.",
     "the range is too wide to tell, over one pair of configurations, in 3 repetitions."),
])
def test_a_pair_is_answered_with_its_range_or_why_there_is_none(runs: Runs, verdict: str, why: str) -> None:
    found = between(ask(compare(runs), Criteria()), ("workers=1", "workers=4"))
    assert (found.verdict, found.why) == (verdict, why)


#: Two models, of which only one was trained by a parameter server, too.
TWO_MODELS: Runs = [
    *[run | {"model": "dense-128"} for run in sizes()],
    *[run | {"model": "dense-128"} for run in repeated([50, 51, 49], strategy="parameter-server", servers=1)],
    *[run | {"model": "resnet20"} for run in sizes(one=[200, 201, 199])],
]


def test_a_pair_is_answered_for_the_models_that_both_trained() -> None:
    found = between_tasks(judge(TWO_MODELS), ("parameter-server", "ddp"))
    assert [(task, pair.verdict) for task, pair in found.items()] == [
        ("dense-128", "use ddp: it was 2.0 times as fast as parameter-server.")]
    assert list(between_tasks(judge(TWO_MODELS), ("workers=1", "workers=4"))) == ["dense-128", "resnet20"]


@pytest.mark.parametrize(("names", "said"), [
    (("nonsense", "ddp"), "no configuration of this race is 'nonsense'"),
    (("model=dense-128", "model=resnet20"), "no data set and model was trained by both"),
])
def test_what_no_model_can_answer_is_refused(names: tuple[str, str], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        between_tasks(judge(TWO_MODELS), names)


def test_one_worker_that_trains_as_single_counts_where_it_is_asked_for() -> None:
    runs = [*repeated([100, 101, 99], strategy="single"), *repeated([90, 91, 89], workers=1),
            *repeated([150, 151, 149], workers=2), *repeated([80, 81, 79], strategy="allreduce", workers=1),
            *repeated([120, 121, 119], strategy="allreduce", workers=2)]
    [found] = between_tasks(judge(runs), ("ddp", "allreduce")).values()
    assert found.cells == 2


def test_a_group_that_learns_less_is_compared_and_its_accuracy_named() -> None:
    runs = [*repeated([100, 101, 99], strategy="single", accuracy=0.918),
            *repeated([280, 282, 278], workers=2, accuracy=0.523)]
    [found] = between_tasks(judge(runs), ("single", "ddp")).values()
    assert found.verdict == "ddp was 2.8 times as fast as single, but its test accuracy was 0.5230 against 0.9180."
    assert found.caveats == ("Test accuracy 0.5230 of ddp against 0.9180 of single.",)


def test_a_range_beside_other_programs_says_so() -> None:
    [found] = between_tasks(judge(sizes(load=0.3)), ("workers=1", "workers=4")).values()
    assert found.verdict == "use workers=4: it was 4.0 times as fast as workers=1."
    assert found.caveats == ("Other programs used 0.3 of 2 cores during 6 of 6 runs, for which the range allows.",)


def test_an_unknown_name_is_answered_with_names_that_differ() -> None:
    with pytest.raises(BadRequest, match="for example workers=1 or workers=4"):
        between(ask(compare(sizes()), Criteria()), ("1", "4"))


def test_what_is_not_decided_ends_in_a_command_and_what_is_does_not() -> None:
    for runs, begins in ((sizes(), ""), (sizes(one=[100]), "add repetitions: `velodrome race --name RACE --repeat 5`."),
                         (sizes(load=1.4), "close other programs, then add repetitions: `velodrome race --name RACE "
                                           "--repeat 6`.")):
        found = between(ask(compare(runs), Criteria()), ("workers=1", "workers=4"))
        assert (found.next, found.as_json()["next"]) == (begins, begins)


def test_a_group_that_is_faster_but_learns_far_less_is_not_simply_recommended() -> None:
    runs = [*repeated([100, 101, 99], [0.918] * 3, workers=1), *repeated([400, 404, 396], [0.523] * 3, workers=4)]
    found = between(ask(compare(runs), Criteria(), every=True), ("workers=1", "workers=4"))
    assert found.verdict == ("workers=4 was 4.0 times as fast as workers=1, but its test accuracy was 0.5230 against "
                             "0.9180.")


def test_groups_that_differ_in_several_things_are_compared_by_their_means() -> None:
    runs = [*repeated([100, 101, 99], strategy="single"), *repeated([190, 192, 188], workers=2),
            *repeated([180, 182, 178], strategy="allreduce", workers=2)]
    found = between(ask(compare(runs), Criteria(), every=True), ("single", "workers=2"))
    assert "over 2 and 1 configurations, whose means are compared, in 3 repetitions" in found.why

"""Recommendations for made-up races with known answers: each test is one such race."""

from __future__ import annotations

from typing import Any

import pytest

from synthetic_races import beside, repeated, result
from velodrome.errors import BadRequest
from velodrome.judge.criteria import Price
from verdict_questions import answer as ask

pytestmark = pytest.mark.unit

SINGLE = repeated([100, 101, 99], strategy="single")


def test_a_clear_winner_is_named_with_its_interval_and_the_next_size_to_try() -> None:
    other = repeated([150, 152, 148], strategy="allreduce", workers=2)
    answer = ask([*SINGLE, *repeated([190, 192, 188], workers=2), *other])
    assert answer.decision == "use"
    assert answer.best == "torch/ddp with 2 workers"
    assert "27 % faster than torch/allreduce with 2 workers, the next (24 % to 29 % in 3 repetitions)" in answer.why
    assert "190 against 150 examples/s, 90 % ahead of the last of 2 others" in answer.why
    assert answer.distribute is True
    assert "4 workers" in answer.next
    assert answer.as_json()["interval"][0] > 1


def test_distribution_that_is_slower_is_advised_against() -> None:
    answer = ask([*SINGLE, *repeated([70, 71, 69], workers=2)])
    assert answer.decision == "do-not-distribute"
    assert answer.verdict == "use torch/single with 1 worker: do not distribute this."
    assert answer.why.startswith("43 % faster than torch/ddp with 2 workers (38 % to 47 % in 3 repetitions)")
    assert answer.distribute is False


def test_one_worker_of_a_strategy_is_the_same_training_as_single_and_does_not_compete_with_it() -> None:
    for rate in (80, 100, 120):
        alone = repeated([rate, rate + 1, rate - 1], workers=1)
        answer = ask([*SINGLE, *alone, *repeated([70, 71, 69], workers=2)])
        assert (answer.decision, answer.best) == ("do-not-distribute", "torch/single with 1 worker")
        assert answer.caveats == ("torch/ddp with 1 worker trains exactly as torch/single with 1 worker does, so "
                                  "they are not compared.",)
    other = ask([*SINGLE, *repeated([120, 121, 119], workers=1, batch_size=128), *repeated([70, 71, 69], workers=2)])
    assert other.best == "torch/ddp with 1 worker, batch 128", "another batch is another training"
    diloco = ask([*SINGLE, *repeated([120, 121, 119], strategy="diloco"), *repeated([70, 71, 69], workers=2)])
    assert diloco.best == "torch/diloco with 1 worker", "its outer steps are another training"
    alone = ask([*SINGLE, *repeated([120, 121, 119], workers=1)])
    assert alone.best == "torch/ddp with 1 worker", "where nothing else was asked, this is the question"


def test_one_worker_with_a_parameter_server_is_distributed() -> None:
    server = {"strategy": "parameter-server", "engine": "tensorflow", "servers": 1}
    slow = [*repeated([100, 101, 99], workers=1, **server), *repeated([50, 51, 52], workers=2, **server)]
    alone = ask(slow)
    assert alone.decision == "use"
    assert alone.best == "tensorflow/parameter-server with 1 worker and 1 server"
    assert any("it is not known whether distributing helps at all" in caveat for caveat in alone.caveats)
    answer = ask([*slow, *repeated([150, 151, 149], strategy="single", engine="tensorflow")])
    assert answer.verdict == "use tensorflow/single with 1 worker: do not distribute this."
    assert answer.rival == "tensorflow/parameter-server with 1 worker and 1 server"


def test_among_level_configurations_of_one_process_single_is_the_simplest() -> None:
    answer = ask([*repeated([100, 100.1, 99.9], workers=1), *repeated([99.8, 100, 99.6], strategy="single")])
    assert (answer.decision, answer.best) == ("level", "torch/single with 1 worker")


def test_a_distributed_lead_too_small_to_matter_gives_way_to_single_rather_than_one_worker() -> None:
    answer = ask([*repeated([100.6, 101.5, 99.7], workers=2), *repeated([100.3, 101.2, 99.4], workers=1), *SINGLE])
    assert (answer.decision, answer.best) == ("level", "torch/single with 1 worker")
    assert answer.verdict == "use torch/single with 1 worker: distributing gains less than 5 %."


def test_distribution_that_gains_too_little_to_show_is_advised_against() -> None:
    answer = ask([*repeated([100, 101, 99], strategy="single"), *repeated([100.5, 101.4, 99.6], workers=2)])
    assert (answer.decision, answer.distribute) == ("level", False)
    assert answer.best == "torch/single with 1 worker"
    assert "0.5 % apart (from 1.2 % slower to 0.2 % faster)" in answer.why


def test_a_noisy_lead_is_open_and_says_what_it_would_cost_to_settle() -> None:
    answer = ask([*repeated([100, 120, 110], strategy="single"), *repeated([145, 125, 138], workers=2)])
    assert (answer.decision, answer.distribute) == ("open", None)
    assert answer.more_runs is not None
    assert answer.verdict == (
        "use torch/ddp with 2 workers for now: it was 24 % faster than torch/single with 1 worker in all 3 "
        f"repetitions; {answer.more_runs} more would settle it."
    )
    assert "24 % apart, and torch/ddp with 2 workers may be anything from" in answer.why
    assert f"--until-sure --max-repeat {3 + answer.more_runs}` (probably {2 * answer.more_runs} more" in answer.next
    settle = answer.as_json()["settle"]
    assert settle["each"]["torch/ddp with 2 workers"]["runs"] == answer.more_runs
    assert settle["seconds"] == pytest.approx(sum(each["seconds"] for each in settle["each"].values()))


def test_the_runs_it_asks_for_do_tell() -> None:
    rates = {"single": [100.0, 120.0, 110.0], "ddp": [145.0, 125.0, 138.0]}
    more = ask([*repeated(rates["single"], strategy="single"), *repeated(rates["ddp"], workers=2)]).more_runs
    assert more is not None
    enough = [
        *repeated((rates["single"] * (1 + more))[: 3 + more], strategy="single"),
        *repeated((rates["ddp"] * (1 + more))[: 3 + more], workers=2),
    ]
    assert ask(enough).decision == "use"


def test_two_level_strategies_give_the_simpler_one() -> None:
    answer = ask([
        *SINGLE, *repeated([200, 202, 198], workers=4), *repeated([199, 201, 198], strategy="allreduce", workers=2),
    ])
    assert answer.decision == "level"
    assert answer.best == "torch/allreduce with 2 workers"
    assert answer.verdict.endswith("the simplest of 2 that differ by less than 5 %.")


def test_fewer_than_three_repetitions_never_prove_anything() -> None:
    answer = ask([result("single", 1, 100.0), result("ddp", 2, 300.0)])
    assert answer.decision == "open"
    assert answer.more_runs == 2
    assert "one run of each cannot rule out chance" in answer.why
    slower = ask([*repeated([100, 101], strategy="single"), *repeated([30, 30.3], workers=2)])
    assert (slower.decision, slower.distribute) == ("open", None), "not distributing needs evidence, too"
    assert slower.best == "torch/single with 1 worker"
    assert "2 runs of each cannot rule out chance" in slower.why


def test_without_a_baseline_it_says_that_the_gain_is_unknown() -> None:
    answer = ask([*repeated([200, 202, 198], workers=2), *repeated([100, 101, 99], strategy="allreduce", workers=2)])
    assert answer.decision == "use"
    assert any("it is not known whether distributing helps at all" in caveat for caveat in answer.caveats)
    assert "single run and a one-worker run" in answer.next


def test_a_race_without_distribution_is_told_so() -> None:
    answer = ask([*SINGLE, *repeated([150, 151, 149], strategy="single", batch_size=128)])
    assert answer.best == "torch/single with 1 worker, batch 128"
    assert "2 and more workers" in answer.next


def test_poor_efficiency_asks_for_a_larger_batch() -> None:
    answer = ask([*SINGLE, *repeated([120, 121, 119], workers=2)])
    assert answer.decision == "use"
    assert "60 % of the ideal" in answer.next
    assert "larger batch" in answer.next


def test_what_has_lost_is_not_proposed_again() -> None:
    sizes = {workers: repeated([rate, rate + 2, rate - 2], workers=workers)
             for workers, rate in ((1, 100), (2, 190), (4, 150))}
    answer = ask([*SINGLE, *sizes[1], *sizes[2], *sizes[4]])
    assert answer.best == "torch/ddp with 2 workers"
    assert answer.next.startswith("torch/ddp with 4 workers did no better here, so race again with a larger model")
    slow = ask([*SINGLE, *sizes[1], *repeated([120, 121, 119], workers=2)])
    assert "try a larger batch: 2 workers reach 60 %" in slow.next
    server = {"strategy": "parameter-server", "engine": "tensorflow", "servers": 1}
    one = ask([*repeated([100, 101, 99], workers=1, **server), *repeated([50, 51, 52], workers=2, **server)])
    assert one.next.startswith("tensorflow/parameter-server with 2 workers did no better here")
    others = ask([*repeated([100, 101, 99], workers=1, **server), *repeated([50, 51, 52], workers=2)])
    assert others.next.startswith(
        "add runs of tensorflow/parameter-server with 2 and more workers: so far only others ran with them;"
    )


@pytest.mark.parametrize(
    ("cores", "proposal"),
    [
        pytest.param(16, "try 4 workers: 2 still reach 95 % of the ideal;", id="twice as many"),
        pytest.param(3, "try 3 workers: 2 still reach 95 % of the ideal;", id="as many as there are cores"),
        pytest.param(2, "this is as many workers as 2 cores can carry (2 still reach 95 % of the ideal): more need "
                     "more machines;", id="no core is left"),
    ],
)
def test_no_more_workers_are_proposed_than_there_are_cores(cores: int, proposal: str) -> None:
    made = [beside(run, 0.0, cores) for run in (*SINGLE, *repeated([190, 192, 188], workers=2))]
    assert ask(made).next.startswith(proposal)
    older = [{**run, "hosts": [], "machine": {**run["machine"], "cores": cores}} for run in made]
    assert ask(older).next.startswith(proposal)


def test_on_one_core_no_race_of_workers_is_proposed() -> None:
    batches = [*SINGLE, *repeated([150, 151, 149], strategy="single", batch_size=128)]
    assert ask([beside(run, 0.0, 1) for run in batches]).next.startswith(
        "there is one core here, so only more machines can show whether distributing pays;"
    )
    assert ask([beside(run, 0.0, 2) for run in batches]).next.startswith("add runs with 2 workers:")
    alone = ask([beside(run, 0.0, 1) for run in SINGLE])
    assert (alone.decision, alone.next) == ("alone", "race it against another engine, batch size or model.")
    assert "another number of workers" in ask(SINGLE).next


def test_a_verdict_that_other_programs_may_have_changed_is_marked() -> None:
    loaded = [beside(run, 0.9) for run in SINGLE]
    answer = ask([*loaded, *repeated([190, 192, 188], workers=2)])
    assert answer.decision == "open", "the slowed one may be up to ten times as fast"
    assert answer.verdict.startswith("use torch/ddp with 2 workers for now: it was 90 % faster")
    assert answer.next == ("close other programs, then race again: `velodrome race RACE/race.yaml --name RACE-idle "
                           "--until-sure --max-repeat 3`."), "more than three would have to be added"
    assert (answer.reliable, answer.as_json()["reliable"]) == (False, False)
    assert answer.as_json()["doubts"] == list(answer.unreliable)
    assert answer.as_json()["caveats"] == list(answer.caveats)
    assert ask([*loaded, *repeated([190, 192, 188], workers=2)], "accuracy").reliable, "load costs time only"
    idle = ask([*SINGLE, *repeated([190, 192, 188], workers=2)])
    assert (idle.reliable, idle.as_json()["doubts"]) == (True, [])


def test_repetitions_are_proposed_beside_a_limit_that_lets_them_run() -> None:
    loaded = [beside(run, 0.3) for run in SINGLE]
    answer = ask([*loaded, *repeated([130, 131, 129], workers=2)])
    assert answer.next.startswith("close other programs, then add repetitions: `velodrome race")
    assert "2 more on an idle machine would settle it" in answer.verdict
    assert "--until-sure --max-repeat 5" in answer.next, "three have run, and three may be the most that were allowed"


def test_closing_other_programs_is_not_proposed_where_the_runs_scatter_too_much_without_them() -> None:
    alone = repeated([100, 160, 60, 130, 75, 150], strategy="single")
    together = repeated([150, 70, 140, 62, 155, 90], workers=2)
    slow = repeated([20, 20, 20, 20, 20, 20], workers=4)
    answer = ask([*alone, *together, *(beside(run, 0.2) for run in slow)])
    assert answer.decision == "open"
    assert answer.next.startswith("more than 100 further repetitions would be needed to tell them apart: choose")


def test_a_lead_many_times_larger_than_the_disturbance_is_decided_all_the_same() -> None:
    loaded = [beside(run, 0.3) for run in (*SINGLE, *repeated([190, 192, 188], workers=2))]
    answer = ask(loaded)
    assert (answer.decision, answer.reliable) == ("use", True)
    assert answer.lead is not None
    assert answer.lead.low is not None
    idle = ask([*SINGLE, *repeated([190, 192, 188], workers=2)])
    assert idle.lead is not None
    assert idle.lead.low is not None
    assert answer.lead.low == pytest.approx(0.7 * idle.lead.low), "the single may have lost 0.3 of its core"
    assert answer.caveats == (
        "Other programs used 0.3 of 2 cores during 6 of 6 runs: the ranges are widened to allow for that.",
    )


def test_a_configuration_that_may_not_win_does_not_make_a_verdict_unreliable() -> None:
    poor = [beside(run, 0.9) for run in repeated([150, 151, 149], strategy="allreduce", workers=2, accuracy=0.5)]
    assert ask([*SINGLE, *repeated([190, 192, 188], workers=2), *poor]).reliable


def test_a_verdict_on_an_efficiency_above_one_hundred_per_cent_is_marked() -> None:
    answer = ask([*SINGLE, *repeated([500, 510, 490], workers=2)])
    assert answer.verdict.startswith("use torch/ddp with 2 workers for now")
    assert "an efficiency of 250 %: more than 100 % is suspect" in answer.caveats[0]


def test_among_many_level_ones_every_number_is_of_the_recommended() -> None:
    answer = ask([
        *repeated([202, 204, 200], workers=4), *repeated([201.9, 203.9, 199.9], workers=3),
        *repeated([199, 201, 197], workers=2),
    ])
    assert (answer.decision, answer.best) == ("level", "torch/ddp with 2 workers")
    assert answer.rival == "torch/ddp with 4 workers"
    assert answer.lead is not None
    assert answer.lead.estimate == pytest.approx(199 / 202, abs=1e-3)
    assert answer.why.startswith("199 against 202 examples/s for torch/ddp with 4 workers and torch/ddp with 3 workers")
    assert "1.5 % apart" in answer.why


def test_a_target_that_nobody_reached_is_told_with_the_nearest() -> None:
    answer = ask([*SINGLE, *repeated([200, 202], workers=2)], "time-to-accuracy", "accuracy>=0.99")
    assert answer.decision == "nothing"
    assert "the best validation accuracy was 0.9500" in answer.verdict
    assert "more epochs" in answer.next


def test_a_faster_but_less_accurate_strategy_does_not_win_by_throughput_or_cost() -> None:
    results = [*SINGLE, *repeated([400, 402, 398], workers=2, accuracy=0.90),
               *repeated([200, 202, 198], strategy="allreduce", workers=2)]
    answer = ask(results)
    assert answer.best == "torch/allreduce with 2 workers"
    assert any("1 of 3 configurations set aside" in caveat for caveat in answer.caveats)
    assert ask(results, "cost").best != "torch/ddp with 2 workers"


def test_one_unlucky_run_sets_nobody_aside() -> None:
    answer = ask([*SINGLE, *repeated([400, 402, 398], [0.95, 0.93, 0.93], workers=2)])
    assert answer.best == "torch/ddp with 2 workers"


def test_the_headline_warns_of_a_configuration_that_leads_and_learns_far_less() -> None:
    answer = ask([*repeated([100], [0.918], strategy="single"), *repeated([150], [0.523], workers=2)])
    assert answer.best == "torch/single with 1 worker"
    assert answer.verdict == ("use torch/single with 1 worker for now: torch/ddp with 2 workers was 50 % faster, but "
                              "its test accuracy was 0.5230 against 0.9180.")


def test_accuracy_is_an_objective_of_its_own() -> None:
    answer = ask([*repeated([100] * 3, [0.90, 0.901, 0.902], strategy="single"),
                  *repeated([50] * 3, [0.95, 0.951, 0.952], workers=2)], "accuracy")
    assert answer.best == "torch/ddp with 2 workers"
    assert "test accuracy 0.9510" in answer.why


def test_perplexity_takes_the_place_of_accuracy_and_less_is_better() -> None:
    def language(value: float, **fields: Any) -> list[dict[str, Any]]:
        made = repeated([100, 101, 99], **fields)
        return [{**one, "test": {"perplexity": value + place, "total": 1}} for place, one in enumerate(made)]

    answer = ask([*language(200, strategy="single"), *language(120, workers=2)], "accuracy")
    assert answer.best == "torch/ddp with 2 workers"
    assert "test perplexity 121.00" in answer.why
    by_speed = ask([*language(200, strategy="single"), *language(120, workers=2)])
    assert "1 of 2 configurations set aside" in by_speed.caveats[0]


def test_cost_counts_every_process_for_all_of_its_time() -> None:
    results = [*SINGLE, *repeated([150, 151, 149], workers=2)]
    answer = ask(results, "cost", price=Price(3600.0))
    assert answer.decision == "do-not-distribute"
    total = results[0]["seconds"]["total"]
    assert f"{total:.4g} against" in answer.why
    assert ask(results, "cost", price=Price(3600.0, "host")).best == "torch/ddp with 2 workers"
    assert "instance-seconds" in ask(results, "cost").why
    assert ask(results, "cost", "accuracy>=0.9").best == "torch/single with 1 worker"


def test_failed_runs_are_mentioned() -> None:
    ended = result("ddp", 2, 1.0, status="interrupted", seed=4)
    answer = ask([*SINGLE, *repeated([190, 192, 188], workers=2), ended], failed=1)
    assert answer.best == "torch/ddp with 2 workers"
    assert answer.caveats == ("1 run was left out because it did not finish.",)


def test_one_configuration_alone_cannot_be_compared() -> None:
    answer = ask(SINGLE)
    assert answer.decision == "alone"
    assert "nothing to compare it with" in answer.verdict


def test_nothing_finished_gives_nothing() -> None:
    assert ask([result(status="failed")], failed=1).decision == "nothing"
    assert ask([]).verdict == "no run finished, so there is nothing to compare."


def test_every_answer_is_three_lines() -> None:
    for answer in (ask(SINGLE), ask([]), ask([*SINGLE, *repeated([70, 71], workers=2)])):
        assert [line.split(":")[0] for line in answer.lines] == ["Verdict", *(["Why"] * bool(answer.why)), "Next"]
        assert not any("\n" in line for line in answer.lines)


def test_an_unknown_objective_or_a_missing_target_is_refused() -> None:
    with pytest.raises(BadRequest, match="'speed'"):
        ask(SINGLE, "speed")
    with pytest.raises(BadRequest, match="--target"):
        ask(SINGLE, "time-to-accuracy")


def test_a_baseline_that_is_beaten_is_no_default() -> None:
    answer = ask([*repeated([100, 102, 98] * 2, strategy="single"), *repeated([90, 200, 60, 150, 210, 70], workers=1),
                  *repeated([180, 183, 177] * 2, workers=2),
                  *repeated([50, 51, 49] * 2, strategy="allreduce", workers=2)])
    assert (answer.decision, answer.best) == ("use", "torch/ddp with 2 workers")

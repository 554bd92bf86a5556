"""What our runs say about a study's claims, and published figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from synthetic_races import beside, result
from typed_judge import compare
from velodrome.clusters import environments, preflight
from velodrome.judge.compare import Row
from velodrome.studies import plan as planning
from velodrome.studies.claims import Finding, findings
from velodrome.studies.load import parse_study, study_named
from velodrome.studies.outcome import compare_figures
from velodrome.studies.plan import Choice, StudyPlan, plan_study

pytestmark = pytest.mark.unit

NOT_HERE, INCONCLUSIVE = "not checkable here", "inconclusive"
#: Three repetitions: less decides nothing.
STEADY, QUIET, NOISY = (1.0, 1.0, 1.0), (0.99, 1.0, 1.01), (0.8, 1.0, 1.25)


def whatever(name: str) -> None:
    """Every data set is there."""


def rows_for(
    plan: StudyPlan, rates: Sequence[float], noise: Sequence[float] = STEADY, accuracies: Sequence[float] = (),
) -> list[Row]:
    """A made-up result for each of our jobs, once for each factor of noise; every job has them in another order."""
    made = []
    for place, (job, rate) in enumerate(zip(plan.jobs, rates, strict=True)):
        orders = list(permutations(noise))
        fields = {name: job[name] for name in ("engine", "strategy", "workers", "servers", "batch_size") if name in job}
        if job.get("script"):
            fields |= {"strategy": "script", "script": job["script"]}
        good = {"accuracy": accuracies[place]} if accuracies else {}
        made += [
            result(rate=rate * factor, dataset=job.get("dataset", "script"), model=job.get("model", job.get("script")),
                   job=dict(job), seed=seed, **fields, **good)
            for seed, factor in enumerate(orders[place % len(orders)], start=1)
        ]
    return compare(made)


def test_published_figures_stand_beside_the_run_of_the_same_configuration() -> None:
    plan = plan_study(study_named("zipperle-2018"), "smoke", Choice(), look=whatever)
    rows = rows_for(plan, [100, 200, 110, 210])
    compared = [b for b in compare_figures(plan, rows, 2) if b.setting.published["steps"] == 1000]
    found = {(b.setting.published["workers"], b.setting.published["servers"]): b for b in compared}
    assert found[1, 1].published["seconds"] == 92.45
    assert found[1, 1].ours["seconds"] == pytest.approx(rows[0].mean("train_seconds"))
    assert found[3, 1].published["seconds"] == 34.25
    assert found[3, 1].run == found[2, 1].run
    assert "workers 3 → 2" in found[3, 1].setting.changes
    full = plan_study(study_named("zipperle-2018"), "full", Choice(), look=whatever)
    assert all(b.published == {} for b in compare_figures(full, [], 2) if b.setting.published["servers"] > 1)
    assert found[2, 1].as_json()["differs"]
    assert found[2, 1].places == ("section VI, figure 7",)


def test_a_difference_is_within_the_noise_or_not() -> None:
    plan = plan_study(study_named("zipperle-2018"), "full", Choice(), look=whatever)
    near, far = (compare_figures(plan, rows_for(plan, [rate] * 9, NOISY), 2)[0] for rate in (4 * 1200 / 92.45, 1_000.0))
    assert abs(near.difference("seconds") or 99) < 3
    assert near.within_noise("seconds") is True
    assert far.within_noise("seconds") is False
    alone = compare_figures(plan, rows_for(plan, [100.0] * 9, (1.0,)), 2)[0]
    assert alone.within_noise("seconds") is None
    told = near.as_json()
    assert told["within_noise"]["seconds"] is True
    assert told["difference"]["seconds"] == near.difference("seconds")
    shorter = plan_study(study_named("zipperle-2018"), "smoke", Choice(), look=whatever)
    other = compare_figures(shorter, rows_for(shorter, [4 * 1200 / 92.45] * 4, NOISY), 2)[0]
    assert other.within_noise("seconds") is None


def _jaeger(
    monkeypatch: pytest.MonkeyPatch, curve: dict[int, float], most: int, noise: Sequence[float] = STEADY
) -> tuple[StudyPlan, list[Row]]:
    """The study as a machine with 64 cores would run it, up to some number of workers."""
    monkeypatch.setattr(planning, "cores", lambda: 64)
    monkeypatch.setattr(preflight, "available_memory", lambda: 2**50)
    monkeypatch.setattr(planning._Fitter, "fit", lambda self, fields: fields)
    plan = plan_study(study_named("jaeger-2018"), "full", Choice(), look=whatever)
    settings = tuple(s for s in plan.settings if s.published["workers"] <= most)
    plan = StudyPlan(**{**vars(plan), "settings": settings})
    return plan, rows_for(plan, [100 * curve[job["workers"]] for job in plan.jobs], noise)


IDEAL = {count: count * 0.95 for count in (1, 2, 5, 10, 25, 50)} | {1: 1.0}
BENT = {**IDEAL, 50: 30.0}
RNN = "the RNN at batch 20 scales nearly ideally to 25 workers in TensorFlow"
LINEAR = "both scale linearly to 50 workers at batch 512 and 256"
HIGHER = "MXNet has the higher throughput, except for the CNN at batch 128 with more than 30 workers"
FLATTER = "at batch 128 both are flatter beyond 25 workers"
BETTER = "TensorFlow has the better speedup"


def of(claim: str, plan: StudyPlan, rows: list[Row], cores: int) -> Finding:
    return next(finding for finding in findings(plan, rows, cores) if finding.claim.text == claim)


def test_claims_about_one_engine_agree_or_not_by_its_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, rows = _jaeger(monkeypatch, IDEAL, 50)
    assert of(RNN, plan, rows, 64).verdict == "agrees"
    flat = {**IDEAL, 10: 6.0, 25: 9.0, 50: 9.0}
    plan, rows = _jaeger(monkeypatch, flat, 50)
    assert of(RNN, plan, rows, 64).verdict == "disagrees"
    assert of(LINEAR, plan, rows, 64).verdict == "disagrees"
    plan, rows = _jaeger(monkeypatch, BENT, 50)
    assert of(RNN, plan, rows, 64).verdict == "agrees"


def test_what_our_runs_refute_comes_first_with_what_could_explain_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    plan, _ = _jaeger(monkeypatch, IDEAL, 50)
    rates = [100 * job["workers"] * (0.5 if job["engine"] == "mxnet" else 1.0) for job in plan.jobs]
    judged = findings(plan, rows_for(plan, rates), 64)
    verdicts = [finding.verdict for finding in judged]
    order = ["disagrees", "agrees", INCONCLUSIVE, NOT_HERE]
    assert verdicts == sorted(verdicts, key=order.index)
    assert verdicts[0] == "disagrees"
    assert all(not finding.explanations for finding in judged if finding.verdict != "disagrees")
    refuted = next(finding for finding in judged if finding.claim.text == HIGHER)
    assert any("one core each" in explanation for explanation in refuted.explanations)
    assert refuted.as_json()["place"] == "section 6.3 and chapter 7"


def test_claims_beyond_our_cores_or_engines_cannot_be_checked_and_our_numbers_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))  # where MXNet is not installed
    plan, rows = _jaeger(monkeypatch, IDEAL, 50)
    linear = of(LINEAR, plan, rows, 2)
    assert linear.verdict == NOT_HERE
    assert linear.sentence.startswith("not checkable here, because 50 workers and 1 server with a core each are "
                                      "needed, but there are 2 cores")
    linear = of(LINEAR, plan, rows, 3)
    assert "tensorflow/parameter-server (stock) 2+1, batch 512, 8 epochs over one worker: 1.90" in linear.why
    assert "there are 3 cores" in linear.why
    higher = of(HIGHER, plan, rows, 64)
    assert higher.verdict == NOT_HERE
    assert "velodrome engines install mxnet" in higher.why


def test_one_engine_is_above_another_only_where_both_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    plan, _ = _jaeger(monkeypatch, IDEAL, 2)

    def rows(advantage: float) -> list[Row]:
        rates = [(advantage if job["engine"] == "mxnet" else 1.0) * 100 * job["workers"] for job in plan.jobs]
        return rows_for(plan, rates)

    assert of(HIGHER, plan, rows(1.5), 4).verdict == "agrees"
    assert of(HIGHER, plan, rows(0.5), 4).verdict == "disagrees"
    assert of(HIGHER, plan, [], 2).verdict == NOT_HERE


def test_an_exception_of_the_document_is_no_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    plan, _ = _jaeger(monkeypatch, IDEAL, 50)

    def rows(exception: dict[str, Any]) -> list[Row]:
        def rate(job: Any) -> float:
            behind = all(job.get(name) == value for name, value in exception.items())
            return 100 * job["workers"] * (1.0 if job["engine"] == "tensorflow" else 0.5 if behind else 1.5)

        return rows_for(plan, [rate(job) for job in plan.jobs])

    assert of(HIGHER, plan, rows({"model": "lenet5", "batch_size": 128, "workers": 50}), 64).verdict == "agrees"
    assert of(HIGHER, plan, rows({"model": "lenet5", "batch_size": 128, "workers": 25}), 64).verdict == "disagrees"
    assert of(HIGHER, plan, rows({"model": "lstm-small", "batch_size": 5, "workers": 50}), 64).verdict == "disagrees"


def test_runs_that_other_programs_disturbed_decide_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    plan, _ = _jaeger(monkeypatch, IDEAL, 2)
    names = ("engine", "strategy", "workers", "servers", "batch_size", "dataset", "model")
    for used, verdict in ((0.0, "disagrees"), (1.5, INCONCLUSIVE)):
        made = [
            beside(result(rate=100.0 * (1.0 if job["engine"] == "mxnet" else 1.5), job=dict(job), seed=seed,
                          **{name: job[name] for name in names}), used)
            for job in plan.jobs for seed in (1, 2, 3)
        ]
        found = of(HIGHER, plan, compare(made), 4)
        assert found.verdict == verdict
        assert ("idle machine" in found.why) == (used > 0)


def test_repetitions_decide_only_beyond_chance_and_single_runs_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    near = {count: count * 0.85 for count in IDEAL} | {1: 1.0}
    for noise, verdict in (((1.0,), INCONCLUSIVE), (QUIET, "agrees"), (NOISY, INCONCLUSIVE)):
        plan, rows = _jaeger(monkeypatch, near, 50, noise)
        found = of(RNN, plan, rows, 64)
        assert found.verdict == verdict
        assert ("--repeat 3" in found.why) == (len(noise) == 1)
        assert "over one worker: 21.25" in found.why
    below = {count: count * 0.75 for count in IDEAL} | {1: 1.0}
    for noise, verdict in ((QUIET, "disagrees"), (NOISY, INCONCLUSIVE)):
        plan, rows = _jaeger(monkeypatch, below, 50, noise)
        assert of(RNN, plan, rows, 64).verdict == verdict


def test_single_runs_tell_which_way_they_lean(monkeypatch: pytest.MonkeyPatch) -> None:
    for curve, words in ((IDEAL, "as published so far"), (dict.fromkeys(IDEAL, 1.0), "against it so far")):
        plan, rows = _jaeger(monkeypatch, curve, 50, (1.0,))
        assert words in of(RNN, plan, rows, 64).why


def test_a_curve_is_flatter_only_beyond_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    for curve, noise, verdict in (
        (BENT, STEADY, "agrees"), (BENT, QUIET, "agrees"), (IDEAL, QUIET, "disagrees"),
        ({**IDEAL, 50: 1.5 * IDEAL[25]}, NOISY, INCONCLUSIVE),
    ):
        plan, rows = _jaeger(monkeypatch, curve, 50, noise)
        assert of(FLATTER, plan, rows, 64).verdict == verdict


def test_one_engine_beats_another_only_beyond_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    plan, _ = _jaeger(monkeypatch, IDEAL, 2)

    def judged(claim: str, mxnet: dict[int, float], noise: Sequence[float]) -> tuple[str, str]:
        rates = [100 * (mxnet if job["engine"] == "mxnet" else {1: 1, 2: 1.9})[job["workers"]] for job in plan.jobs]
        found = of(claim, plan, rows_for(plan, rates, noise), 4)
        return found.verdict, found.why

    faster = {1: 1.2, 2: 1.9 * 1.2}
    assert judged(HIGHER, faster, QUIET)[0] == "agrees"
    assert judged(HIGHER, {1: 0.8, 2: 1.9 * 0.8}, QUIET)[0] == "disagrees"
    assert judged(HIGHER, faster, NOISY)[0] == INCONCLUSIVE
    verdict, why = judged(HIGHER, faster, (1.0,))
    assert verdict == INCONCLUSIVE
    assert "it takes at least 3 runs" in why
    flatter = {1: 1.2, 2: 1.2 * 1.6}
    assert judged(BETTER, flatter, QUIET)[0] == "agrees"
    assert judged(BETTER, flatter, NOISY)[0] == INCONCLUSIVE
    assert judged(BETTER, {1: 1.2, 2: 1.2 * 2.2}, QUIET)[0] == "disagrees"


def _kouskouras(monkeypatch: pytest.MonkeyPatch, scale: str = "full") -> StudyPlan:
    monkeypatch.setattr(planning._Fitter, "fit", lambda self, fields: fields)
    return plan_study(study_named("kouskouras-2022"), scale, Choice(), look=whatever)  # type: ignore[arg-type]


ACCURATE = "in the second and third model, servers are more accurate than mirrored workers"
FASTER = "in the second model, servers train faster than mirrored workers"


def test_accuracies_count_where_times_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _kouskouras(monkeypatch)
    for servers, verdict in ((0.9, "agrees"), (0.8, "disagrees")):
        accuracies = [servers if job["strategy"] == "parameter-server" else 0.85 for job in plan.jobs]
        rows = rows_for(plan, [100.0] * len(plan.jobs), QUIET, accuracies)
        found = of(ACCURATE, plan, rows, 2)
        assert found.verdict == verdict
        assert bool(found.explanations) == (verdict == "disagrees")
        assert of(FASTER, plan, rows, 2).verdict == NOT_HERE


def test_a_shorter_training_says_nothing_about_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _kouskouras(monkeypatch, "small")
    rows = rows_for(plan, [100.0] * len(plan.jobs))
    found = of(ACCURATE, plan, rows, 64)
    assert found.verdict == NOT_HERE
    assert "our runs differ" in found.why
    assert "epochs 25 → 10" in found.why


OWN = """\
name: own
title: t
source: s
machines: m
races:
  - job: {{dataset: digits, model: dense-128, engine: torch, strategy: allreduce, epochs: 4, batch_size: 64}}
    vary: {{workers: [1, 2]}}
claims:
  - {{text: c, place: p, checks: [{check}]}}
"""


@pytest.mark.parametrize(("check", "accuracies", "verdict"), [
    ("{kind: level, measure: accuracy, is: more, value: 0.5}", (0.9, 0.9), "agrees"),
    ("{kind: level, measure: accuracy, is: more, value: 0.5}", (0.9, 0.3), "disagrees"),
    ("{kind: level, measure: accuracy, is: same, value: 0.9, within: 0.1}", (0.9, 0.9), "agrees"),
    ("{kind: level, measure: accuracy, is: same, value: 0.5, within: 0.1}", (0.9, 0.9), "disagrees"),
    ("{kind: largest, measure: accuracy, of: {workers: 2}}", (0.8, 0.9), "agrees"),
    ("{kind: largest, measure: accuracy, of: {workers: 2}}", (0.9, 0.8), "disagrees"),
    ("{kind: compare, measure: accuracy, of: {workers: 2}, than: {workers: 1}, is: same, within: 0.05}", (0.9, 0.9),
     "agrees"),
    ("{kind: compare, measure: accuracy, of: {workers: 2}, than: {workers: 1}, is: same, within: 0.05}", (0.9, 0.7),
     "disagrees"),
    ("{kind: compare, measure: train_accuracy@2, of: {workers: 2}, than: {workers: 1}, is: more}", (0.4, 0.9),
     "agrees"),
    ("{kind: compare, measure: train_accuracy@9, of: {workers: 2}, than: {workers: 1}, is: more}", (0.4, 0.9),
     "not checkable here"),
])
def test_every_kind_of_check_is_judged(check: str, accuracies: tuple[float, ...], verdict: str) -> None:
    plan = plan_study(parse_study(OWN.format(check=check), "own.yaml"), "full", Choice(), look=whatever)
    rows = rows_for(plan, [100.0, 200.0], QUIET, accuracies)
    assert findings(plan, rows, 2)[0].verdict == verdict


def test_what_was_added_to_a_study_judges_only_claims_that_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _kouskouras(monkeypatch)
    cut = "mirrored workers may be less accurate because the same data is cut into 9 parts and not into 6"
    for six, verdict in ((0.9, "agrees"), (0.8, "disagrees")):
        accuracies = [{6: six, 9: 0.85}[job["workers"]] if job["strategy"] == "multi-worker-mirrored" else 0.95
                      for job in plan.jobs]
        rows = rows_for(plan, [100.0] * len(plan.jobs), QUIET, accuracies)
        assert of(cut, plan, rows, 2).verdict == verdict
        assert of(ACCURATE, plan, rows, 2).verdict == "agrees"


def test_what_a_scale_leaves_out_is_told_in_one_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning._Fitter, "fit", lambda self, fields: fields)
    plan = plan_study(study_named("jaeger-2018"), "smoke", Choice(),
                      look=lambda name: f"data set {name!r} is not here (not in /usr; not in /opt)")
    assert of(LINEAR, plan, [], 64).why == "this scale leaves out the configurations that it is about"
    assert of(BETTER, plan, [], 64).why == "data set 'fashion-mnist' is not here; data set 'ptb' is not here"


def test_a_gap_compares_ratios_of_pairs_with_as_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    plan, _ = _jaeger(monkeypatch, IDEAL, 2)
    more = "MXNet leads by more in the RNN than in the CNN"
    for in_text, in_images, verdict in ((3.0, 1.5, "agrees"), (1.5, 3.0, "disagrees"), (0.5, 0.3, "disagrees")):
        lead = {"lstm-small": in_text, "lenet5": in_images}
        rates = [100 * job["workers"] * (lead[job["model"]] if job["engine"] == "mxnet" else 1.0) for job in plan.jobs]
        assert of(more, plan, rows_for(plan, rates, QUIET), 4).verdict == verdict


TIMED = "two workers with half of the iterations each need about half of the time of one (51.41 s of 92.45 s)"


def test_times_count_of_processes_that_leave_their_cores_idle() -> None:
    """Section VI: a program that pauses needs no core for each of its processes."""
    plan = plan_study(study_named("zipperle-2018"), "full", Choice(), look=whatever)
    settings = tuple(each for each in plan.settings if each.published["workers"] <= 2)
    plan = StudyPlan(**{**vars(plan), "settings": settings})

    def verdict(percent: float, share: float) -> str:
        made = []
        for job in plan.jobs:
            seconds = 100.0 * (share if job["workers"] == 2 else 1.0)
            for seed in (1, 2, 3):
                one = result(rate=4 * 1200 / seconds, strategy="script", engine="tensorflow", workers=job["workers"],
                             servers=job["servers"], script=job["script"], job=dict(job), seed=seed, dataset="script",
                             model=job["script"])
                for node in one["nodes"]:
                    node["cpu_percent"] = {"mean": percent, "min": 0.0, "max": 2 * percent}
                made.append(one)
        return of(TIMED, plan, compare(made), 2).verdict

    assert verdict(40.0, 0.55) == NOT_HERE
    assert verdict(5.0, 0.55) == "agrees"
    assert verdict(5.0, 0.9) == "disagrees"


def test_servers_need_a_core_unless_they_were_beside_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jaeger, sections 5.2.2 and 6.1: a server process on every worker's machine, or one machine for the server."""
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    plan, rows = _jaeger(monkeypatch, IDEAL, 2)
    assert "2 workers and 1 server with a core each are needed, but there are 2 cores" in of(BETTER, plan, rows, 2).why
    assert of(BETTER, plan, rows, 3).verdict != NOT_HERE

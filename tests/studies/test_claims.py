"""What a study found: published figures beside ours, and claims judged fairly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest

from synthetic_races import beside, result
from typed_judge import compare
from velodrome.clusters import environments, preflight
from velodrome.judge.compare import Row
from velodrome.studies import plan as planning
from velodrome.studies.load import study_named
from velodrome.studies.outcome import CANNOT, INCONCLUSIVE, compare_figures, findings
from velodrome.studies.plan import Choice, StudyPlan, plan_study

pytestmark = pytest.mark.unit


def whatever(name: str) -> None:
    """Every data set is there."""


def rows_for(plan: StudyPlan, rates: Sequence[float], noise: Sequence[float] = (1.0,)) -> list[Row]:
    """A made-up result for each of our jobs, once for each factor of noise; every job has them in another order."""
    made = []
    for place, (job, rate) in enumerate(zip(plan.jobs, rates, strict=True)):
        orders = list(permutations(noise))
        fields = {name: job[name] for name in ("engine", "strategy", "workers", "servers", "batch_size") if name in job}
        made += [
            result(rate=rate * factor, dataset=job["dataset"], model=job["model"], job=dict(job), seed=seed, **fields)
            for seed, factor in enumerate(orders[place % len(orders)], start=1)
        ]
    return compare(made)


def test_published_figures_stand_beside_the_run_of_the_same_configuration() -> None:
    plan = plan_study(study_named("zipperle-2018"), "smoke", Choice(), look=whatever)
    rows = rows_for(plan, [100, 200, 110, 210])
    compared = compare_figures(plan, rows, 2)
    found = {(b.setting.published["workers"], b.setting.published["servers"]): b for b in compared}
    assert found[1, 1].published["total"] == 92.45
    assert found[1, 1].ours["total"] == pytest.approx(rows[0].mean("total_seconds"))
    assert found[3, 1].published["total"] == 34.25
    assert found[3, 1].run == found[2, 1].run
    assert "workers 3 → 2" in found[3, 1].setting.changes
    assert found[1, 2].published == {}
    assert found[2, 1].as_json()["differs"]


def _jaeger(
    monkeypatch: pytest.MonkeyPatch, curve: dict[int, float], most: int, noise: Sequence[float] = (1.0,)
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


def verdicts(plan: StudyPlan, rows: list[Row], cores: int) -> dict[str, str]:
    return {finding.claim: finding.verdict for finding in findings(plan, rows, cores)}


def test_claims_about_one_engine_hold_or_not_by_its_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    rnn = "the RNN at batch 20 scales to 25 workers in TensorFlow"
    plan, rows = _jaeger(monkeypatch, IDEAL, 50)
    assert verdicts(plan, rows, 64)[rnn] == "holds"
    flat = {**IDEAL, 10: 6.0, 25: 9.0, 50: 9.0}
    plan, rows = _jaeger(monkeypatch, flat, 50)
    assert verdicts(plan, rows, 64)[rnn] == "does not hold"
    assert verdicts(plan, rows, 64)["both scale linearly to 50 workers at batch 512 and 256"] == "does not hold"
    plan, rows = _jaeger(monkeypatch, BENT, 50)
    assert verdicts(plan, rows, 64)[rnn] == "holds"


def test_claims_beyond_our_cores_or_engines_cannot_be_checked_and_our_numbers_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))  # where MXNet is not installed
    plan, rows = _jaeger(monkeypatch, IDEAL, 50)
    linear = next(finding for finding in findings(plan, rows, 2) if "linearly to 50" in finding.claim)
    assert linear.verdict == CANNOT
    assert "tensorflow, batch 512: speedup by workers 1: 1.00, 2: 1.90" in linear.why
    assert "there are 2 cores" in linear.why
    higher = next(finding for finding in findings(plan, rows, 64) if "higher throughput" in finding.claim)
    assert higher.verdict == CANNOT
    assert "velodrome engines install mxnet" in higher.why


def test_one_engine_is_above_another_only_where_both_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    plan, _ = _jaeger(monkeypatch, IDEAL, 2)

    def rows(advantage: float) -> list[Row]:
        rates = [(advantage if job["engine"] == "mxnet" else 1.0) * 100 * job["workers"] for job in plan.jobs]
        return rows_for(plan, rates)

    claim = "MXNet has the higher throughput"
    assert verdicts(plan, rows(1.5), 2)[claim] == "holds"
    assert verdicts(plan, rows(0.5), 2)[claim] == "does not hold"
    assert verdicts(plan, [], 2)[claim] == CANNOT


def test_runs_that_other_programs_disturbed_decide_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    plan, _ = _jaeger(monkeypatch, IDEAL, 2)
    claim = "MXNet has the higher throughput"
    for used, verdict in ((0.0, "does not hold"), (1.5, INCONCLUSIVE)):
        names = ("engine", "strategy", "workers", "servers", "batch_size", "dataset", "model")
        made = [
            beside(result(rate=100.0, job=dict(job), seed=1, **{name: job[name] for name in names}), used)
            for job in plan.jobs
        ]
        found = next(finding for finding in findings(plan, compare(made), 2) if finding.claim == claim)
        assert found.verdict == verdict
        assert ("idle machine" in found.why) == (used > 0)


QUIET, NOISY = (0.99, 1.0, 1.01), (0.8, 1.0, 1.25)


def test_repetitions_decide_only_beyond_chance_and_single_runs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rnn = "the RNN at batch 20 scales to 25 workers in TensorFlow"
    near = {count: count * 0.85 for count in IDEAL} | {1: 1.0}
    for noise, verdict in (((1.0,), "holds"), (QUIET, "holds"), (NOISY, INCONCLUSIVE)):
        plan, rows = _jaeger(monkeypatch, near, 50, noise)
        found = next(finding for finding in findings(plan, rows, 64) if finding.claim == rnn)
        assert found.verdict == verdict
        assert ("single runs" in found.why) == (len(noise) == 1)
        assert "25: 21.25" in found.why
    below = {count: count * 0.75 for count in IDEAL} | {1: 1.0}
    for noise, verdict in ((QUIET, "does not hold"), (NOISY, INCONCLUSIVE)):
        plan, rows = _jaeger(monkeypatch, below, 50, noise)
        assert verdicts(plan, rows, 64)[rnn] == verdict


def test_a_curve_is_flatter_only_beyond_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    claim = "at batch 128 both are flatter beyond 25 workers"
    for curve, noise, verdict in (
        (BENT, (1.0,), "holds"), (BENT, QUIET, "holds"), (IDEAL, QUIET, "does not hold"),
        ({**IDEAL, 50: 1.5 * IDEAL[25]}, NOISY, INCONCLUSIVE),
    ):
        plan, rows = _jaeger(monkeypatch, curve, 50, noise)
        assert verdicts(plan, rows, 64)[claim] == verdict


def test_one_engine_beats_another_only_beyond_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available", lambda fields, look, elsewhere: None)
    plan, _ = _jaeger(monkeypatch, IDEAL, 2)

    def judged(claim: str, mxnet: dict[int, float], noise: Sequence[float]) -> tuple[str, str]:
        rates = [100 * (mxnet if job["engine"] == "mxnet" else {1: 1, 2: 1.9})[job["workers"]] for job in plan.jobs]
        found = next(one for one in findings(plan, rows_for(plan, rates, noise), 2) if one.claim == claim)
        return found.verdict, found.why

    faster = {1: 1.2, 2: 1.9 * 1.2}
    higher = "MXNet has the higher throughput"
    assert judged(higher, faster, QUIET)[0] == "holds"
    assert judged(higher, {1: 0.8, 2: 1.9 * 0.8}, QUIET)[0] == "does not hold"
    assert judged(higher, faster, NOISY)[0] == INCONCLUSIVE
    verdict, why = judged(higher, faster, (1.0,))
    assert verdict == "holds"
    assert "single runs: chance is not excluded" in why
    flatter, better = {1: 1.2, 2: 1.2 * 1.6}, "TensorFlow has the better speedup"
    assert judged(better, flatter, QUIET)[0] == "holds"
    assert judged(better, flatter, NOISY)[0] == INCONCLUSIVE
    assert judged(better, {1: 1.2, 2: 1.2 * 2.2}, QUIET)[0] == "does not hold"

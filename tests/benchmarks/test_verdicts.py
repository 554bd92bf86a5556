"""The simulation of verdicts judges as the product does, and its tables fit the page of the docs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from velodrome.judge.decide import contest_of, decide

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.quick("two-until sure", "missing-until sure", "stragglers-until sure")
@pytest.mark.parametrize("until_sure", [True, False], ids=["until sure", "all repetitions"])
@pytest.mark.parametrize(
    "world",
    [
        {"size": 2, "noise": 0.05, "lead": 0.05},
        {"size": 3, "noise": 0.05, "lead": 0.1, "missing": 0.15},
        {"size": 5, "noise": 0.05, "lead": 0.1, "stragglers": 0.1, "drift": 0.2},
        {"size": 6, "noise": 0.05, "lead": 0.08, "missing": 0.1, "noisy": 1, "times": 3.0, "ladder": True},
        {"size": 4, "noise": 0.01, "shared": 0.1},
    ],
    ids=["two", "missing", "stragglers", "ladder", "level"],
)
def test_a_simulated_race_ends_as_the_rule_decides(world, until_sure):
    from simulated import TOLERANCE, World, follow

    truth = World(**world)
    apart = truth.speeds()[:, None] - truth.speeds()[None, :]
    ends, values = follow(truth, np.random.default_rng(3), 40, 9, until_sure=until_sure)
    outcomes = set()
    for race, blocks in enumerate(values):
        standing = decide(contest_of(blocks[:, : int(ends.repetitions[race])], TOLERANCE))
        outcomes.add(standing.outcome)
        assert set(standing.survivors) == set(np.flatnonzero(ends.survivors[race]))
        claimed = _claimed(blocks[:, : int(ends.repetitions[race])], TOLERANCE)
        assert {(drop.winner, drop.loser) for drop in standing.drops} <= claimed
        assert ends.false[race] == any(apart[winner, loser] <= 0 for winner, loser in claimed)
        assert ends.level[race] == (standing.outcome == "level")
        assert ends.right[race] == (standing.survivors == (0,) and not truth.undecided)
    assert outcomes - {"open"}, "nothing was decided, so nothing was compared"


def _claimed(blocks, tolerance):
    """All pairs of which a race said at any look that the first beats the second; not only the best that beats it."""
    found, left = set(), range(len(blocks))
    for look in range(1, blocks.shape[1] + 1):
        standing = decide(contest_of(blocks[:, :look], tolerance))
        leads = {(one, other): standing.lead(one, other) for one in left for other in left if one != other}
        found |= {pair for pair, lead in leads.items() if lead.low > 0 and lead.high >= np.log1p(tolerance)}
        left = standing.survivors
    return found


def test_a_race_until_sure_ends_when_it_is_decided_and_lets_nobody_run_who_is_out():
    from simulated import World, follow

    ends, values = follow(World(4, 0.05, 0.15), np.random.default_rng(1), 50, 20, until_sure=True)
    assert ends.right.mean() > 0.9
    assert ends.runs.mean() < 4 * ends.repetitions.mean()
    assert (~np.isnan(values)).sum() == ends.runs.sum()


def test_drift_is_what_was_asked_for_and_runs_of_a_repetition_have_a_random_order():
    from simulated import DRIFT_PERIOD, World, grid

    values = np.exp(-grid(World(4, 0.0, drift=0.2), np.random.default_rng(1), 500, DRIFT_PERIOD + 1))
    assert values[:, :, DRIFT_PERIOD].min(1) == pytest.approx(np.full(500, 1.2))
    assert np.ptp(values.mean(0), axis=0) == pytest.approx(np.zeros(DRIFT_PERIOD + 1), abs=0.005)


def test_the_page_has_a_place_for_every_table_and_keeps_the_rest(tmp_path, monkeypatch):
    import verdicts

    words = ["--races", "40", "--cells", "K=8 noise=5", "--json", f"{tmp_path}/f"]
    monkeypatch.setattr(sys, "argv", ["verdicts.py", *words])
    monkeypatch.setattr(verdicts, "GRIDS", (2, 5))
    assert verdicts.main() == 0
    figures = json.loads((tmp_path / "f").read_text())
    assert len(figures) == sum({"K=8", "noise=5"} <= set(cell.name.split()) for cell in verdicts.cells())
    page = tmp_path / "verdicts.md"
    page.write_text(verdicts.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    verdicts.write_page(page, verdicts.pages(figures))
    written = page.read_text(encoding="utf-8")
    assert written.splitlines()[0] == verdicts.PAGE.read_text(encoding="utf-8").splitlines()[0]
    for table in verdicts.pages(figures).values():
        assert table in written
    verdicts.write_page(page, verdicts.pages(figures))
    assert page.read_text(encoding="utf-8") == written


def test_a_grid_of_equal_error_has_the_repetitions_at_which_it_is_right_as_often():
    from verdict_tables import BY_SIZE, EQUAL, ONE, UNDISTURBED, savings

    def figure(right, seconds, curve, situation="undisturbed", size=2):
        return {"size": size, "situation": situation, "until_sure": {"answered": right, "seconds": seconds},
                "grid": {"repetition": 2.0, "right": dict(zip(("5", "10", "20"), curve, strict=True))}}

    easy, hard = figure(1.0, 8.0, (0.98, 1.0, 1.0)), figure(0.7, 20.0, (0.1, 0.4, 0.9))
    disturbed, larger = figure(0.9, 30.0, (0.1, 0.4, 0.9), "stragglers"), figure(1.0, 9.0, (1.0, 1.0, 1.0), size=4)
    found = savings([easy, hard, disturbed, figure(0.1, 30.0, (0.0, 0.0, 0.2)), larger])
    assert found[EQUAL] == pytest.approx([8 / (2 * 10), 20 / (2 * 16), 9 / (2 * 5)])
    assert found[UNDISTURBED] == pytest.approx([8 / (2 * 16), 20 / (2 * 16), 9 / (2 * 5)])
    assert found[BY_SIZE] == pytest.approx([8 / (2 * 20), 20 / (2 * 20), 30 / (2 * 20), 9 / (2 * 5)])
    assert found[ONE] == pytest.approx([8 / (2 * 20), 20 / (2 * 20), 30 / (2 * 20), 9 / (2 * 20)])


def test_a_grid_is_right_if_it_finds_the_best_or_calls_level_what_is():
    from simulated import World, answered_by_grid, grid

    def share(world, repetitions):
        return answered_by_grid(world, grid(world, np.random.default_rng(1), 100, repetitions)) / 100

    assert share(World(4, 0.02, 0.3), 10) == 1.0
    assert share(World(4, 0.02), 20) > 0.9, "equal, and called level"
    assert share(World(4, 0.15, 0.03), 5) == 0.0, "nobody can tell"
    assert share(World(4, 0.001, 0.04, best=2), 5) == 1.0, "all four are within the tolerance"


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_the_limit_of_what_stopping_saves_demands_less_than_the_rule_at_every_look(size):
    from verdict_floor import single_look

    from velodrome.judge.blocks import FIRST_LOOK, margin

    freedom, rivals = np.array([[[2.0, 10.0, 100.0]]]), np.array([[[float(size)]]])
    for look in range(FIRST_LOOK, 31):
        assert (single_look(freedom, look, rivals, size) < margin(freedom, look, rivals, size)).all(), look
    assert np.isinf(single_look(freedom, FIRST_LOOK - 1, rivals, size)).all()


def test_a_race_without_allowance_for_looks_stops_sooner_and_claims_too_much():
    from simulated import World
    from verdict_floor import measure, summary

    led, equal = measure(World(4, 0.02, 0.1), 1, 100), measure(World(4, 0.15), 1, 200)
    assert led["limit"] < led["product"]
    assert equal["false"] > 0.1
    assert "limit" not in equal, "a cell that nobody can settle is not compared"
    assert "median of the cells | 4 configurations" in summary([led, equal])


def test_what_other_programs_slow_makes_no_false_claim_unless_nothing_allows_for_it(monkeypatch):
    import simulated

    world = simulated.World(4, 0.05, foreign=0.3, slowed=2)
    assert simulated.simulated(world, 5, 200, 10, until_sure=True).false.mean() <= 0.05
    clear = simulated.World(2, 0.05, 1.0, foreign=0.3, slowed=1)
    assert simulated.simulated(clear, 5, 200, 10, until_sure=True).right.mean() > 0.95, "a large lead is decided"
    monkeypatch.setattr(simulated, "slowed_fit", lambda found, most: found)
    assert simulated.simulated(world, 5, 200, 10, until_sure=True).false.mean() > 0.5

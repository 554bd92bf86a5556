"""`velodrome race --until-sure` as a user types it: a small race really runs, decides, and does so once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from velodrome.races.hosts import rates


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_race_runs_until_it_is_sure_and_again_runs_nothing(velodrome, runs: Path, no_strays, idle) -> None:
    command = ("race", "--dataset", "digits", "--model", "linear", "--engine", "torch", "--epochs", 1, "--threads", 1,
               "--vary", "strategy=ddp", "--vary", "workers=2", "--until-sure", "--max-repeat", 4, "--name", "sure",
               "--runs", runs)
    done = velodrome(*command, "--json")
    assert done.code == 0, done.text
    told = done.json()
    assert {row["strategy"] for row in told["rows"]} == {"single", "ddp"}  # the baseline takes part
    decision = told["decision"]
    assert decision["stopped"] in ("sure", "max-repeat")
    assert 3 <= decision["repetitions"] <= 4
    [task] = decision["tasks"]
    assert len(task["survivors"]) + len(told["drops"]) == 2
    assert all(f"dropped after {drop['after']} repetitions: {drop['name']}, " in done.err for drop in told["drops"])
    ran = sum(row["runs"] for row in told["rows"])
    assert (told["saved"]["runs"], told["saved"]["of_runs"]) == (ran, 2 * decision["repetitions"])
    assert rates(runs / "sure")
    begun = re.findall(r"^\d+/\d+ (\S+): started", done.err, flags=re.MULTILINE)
    assert len(begun) == len(set(begun)) == ran

    again = velodrome("race", "--name", "sure", "--runs", runs, "--json")
    assert again.code == 0, again.text
    assert ": started" not in again.err
    assert again.json() == told
    shown = velodrome("race", "--name", "sure", "--runs", runs)
    said = re.findall(r"(?:Sure|Stopped) after \d repetitions", shown.out + shown.err)
    assert len(said) == 1, "why it ended is said once"
    velodrome("report", "sure", "--runs", runs)
    assert said[0] in (runs / "sure" / "report.html").read_text()
    page = (runs / "sure" / "report.html").read_text()
    assert ("Configurations that were dropped" in page) == bool(told["drops"])

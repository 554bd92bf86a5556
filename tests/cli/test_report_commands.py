"""`velodrome report` and `velodrome recommend` as a user types them, on a made-up race."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synthetic_races import beside, repeated, write_race

pytestmark = pytest.mark.unit


@pytest.fixture
def race(runs: Path) -> Path:
    made = [*repeated([100, 102, 98], strategy="single"), *repeated([180, 182, 178], workers=2)]
    return write_race(runs, made).path


def test_report_prints_the_page_it_wrote_beside_the_runs(velodrome, race, runs) -> None:
    done = velodrome("report", "made", "--runs", runs)
    assert done.code == 0
    assert Path(done.out.strip()) == race / "report.html"
    page = (race / "report.html").read_text()
    assert page.index("distributing pays off") < page.index("do not distribute"), "by cost, further below"


def test_report_writes_other_forms_and_figures_and_tells_scripts_where(velodrome, race, runs, tmp_path) -> None:
    done = velodrome("report", "made", "--runs", runs, "--format", "latex", "--out", tmp_path / "t.tex",
                     "--figures", tmp_path / "figures", "--objective", "accuracy", "--json").json()
    assert Path(done["report"]) == tmp_path / "t.tex"
    assert (tmp_path / "figures" / "workers.svg").is_file()
    assert str(tmp_path / "figures" / "timeline.png") in done["files"]
    assert done["recommendations"][0]["objective"] == "accuracy"


@pytest.mark.parametrize("command", ["recommend", "report"])
def test_how_much_accuracy_may_be_given_up_can_be_chosen(velodrome, runs, command) -> None:
    fast = repeated([180, 182, 178], [0.90, 0.901, 0.902], workers=2)
    write_race(runs, [*repeated([100, 102, 98], [0.95, 0.951, 0.952], strategy="single"), *fast])

    def best(*words: str) -> str:
        found = velodrome(command, "made", "--runs", runs, "--json", *words).json()
        return found.get("recommendations", [found])[0]["best"]

    assert best() == "torch/single with 1 worker"
    assert best("--accuracy-margin", "0.1") == "torch/ddp with 2 workers"


def test_recommend_answers_in_three_lines(velodrome, race, runs) -> None:
    lines = velodrome("recommend", "made", "--runs", runs).out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Verdict", "Why", "Next"]
    assert lines[0] == "Verdict: use torch/ddp with 2 workers: distributing pays off."
    assert f"`velodrome report made --runs {runs}`" in lines[2]


def test_runs_beside_other_programs_are_named_wherever_their_figures_are_shown(velodrome, runs) -> None:
    loaded = [beside(run, 0.9) for run in repeated([180, 182, 178], workers=2)]
    path = write_race(runs, [*repeated([100, 102, 98], strategy="single"), *loaded]).path
    note = "ther programs used 0.9 of 2 cores during 3 of 6 runs"
    lines = velodrome("recommend", "made", "--runs", runs).out.splitlines()
    assert lines[0] == "Verdict: use torch/ddp with 2 workers: distributing pays off.", "load only slows"
    assert lines[3] == f"  - O{note}: the ranges are widened to allow for that."
    velodrome("report", "made", "--runs", runs, "--format", "markdown", "--out", runs / "report.md")
    text = (runs / "report.md").read_text()
    assert f"- O{note}: the ranges" in text
    assert "3 (3 beside other programs)" in text
    assert "other programs (cores)" in text
    first, second = (run.name for run in sorted(path.glob("*ddp*"))[:2])
    shown = velodrome("runs", "show", f"made/{first}", "--runs", runs).out
    assert "used 0.9 of 2 cores: repeat the run on an idle machine" in " ".join(shown.replace("│", " ").split())
    compared = velodrome("runs", "compare", f"made/{first}", f"made/{second}", "--runs", runs).out
    assert "Not reliable: other programs used 0.9 of 2 cores during 2 of 2 runs; repeat them on an idle" in compared


def test_recommend_knows_every_objective(velodrome, race, runs) -> None:
    def ask(*words: str) -> dict[str, Any]:
        return velodrome("recommend", "made", "--runs", runs, "--json", "--objective", *words).json()

    fastest = ask("time-to-accuracy", "--target", "accuracy>=0.7")
    assert (fastest["decision"], fastest["best"]) == ("use", "torch/ddp with 2 workers")
    assert fastest["interval"][0] > 1
    cheap = ask("cost", "--price-per-hour", "0.4")
    assert (cheap["decision"], cheap["best"]) == ("do-not-distribute", "torch/single with 1 worker")
    assert ask("cost", "--price-of", "host")["best"] == "torch/ddp with 2 workers"
    assert ask("accuracy")["objective"] == "accuracy"


def test_recommend_answers_for_every_data_set(velodrome, runs) -> None:
    write_race(runs, [{**made, "dataset": name} for name in ("digits", "kmnist") for made in repeated([1.0, 1.1])])
    assert len(velodrome("recommend", "made", "--runs", runs).out.splitlines()) == 8
    tasks = velodrome("recommend", "made", "--runs", runs, "--json").json()["tasks"]
    assert [answer["task"] for answer in tasks] == ["digits", "kmnist"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["recommend", "absent"], "absent"),
        (["recommend", "made", "--objective", "speed"], "speed"),
        (["recommend", "made", "--objective", "time-to-accuracy"], "--target"),
        (["recommend", "made", "--target", "accuracy"], "accuracy"),
        (["recommend", "made", "--price-per-hour", "-1"], "-1"),
        (["recommend", "made", "--price-of", "gpu"], "gpu"),
        (["report", "absent"], "absent"),
        (["report", "made", "--format", "docx"], "docx"),
        (["report", "made", "--objective", "speed"], "speed"),
        (["report", "made", "--accuracy-margin", "1"], "for example 0.01"),
        (["recommend", "made", "--accuracy-margin", "-1"], "for example 0.01"),
    ],
)
def test_a_bad_request_is_one_sentence_and_exit_code_2(velodrome, race, runs, words, shown) -> None:
    done = velodrome(*words, "--runs", runs)
    assert done.code == 2
    assert shown in done.err
    assert "Traceback" not in done.text
    assert done.out == ""

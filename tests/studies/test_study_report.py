"""The report of a study's race: published figures beside ours, with curves, and the claims, in every form."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import velodrome
from synthetic_races import result, write_race
from velodrome.reporting.document import make_pictures, make_report
from velodrome.reporting.load import load_race
from velodrome.reporting.write import to_html, to_latex, to_markdown
from velodrome.studies.load import parse_study
from velodrome.studies.outcome import compare_figures
from velodrome.studies.plan import Choice, plan_study
from velodrome.studies.record import StudyRecord
from velodrome.studies.report import to_csv, with_study
from velodrome.web.security import Security
from velodrome.web.ui import ui_app

pytestmark = pytest.mark.unit

STUDY = """\
name: own
title: A study
source: Somebody 2026
machines: two machines
notes: [all of it is made up]
races:
  - job: {dataset: digits, model: dense-128, engine: torch, strategy: allreduce, epochs: 4, batch_size: 64}
    vary: {workers: [1, 2]}
settings:
  - {fields: [epochs], published: section 3}
figures:
  - of: {workers: 1}
    place: table 1
    values:
      accuracy: 0.952
      seconds: 4.8
      cpu: {min: 10, mean: 20, max: 30}
      memory: {min: 0.1, mean: 0.2, max: 0.3}
      inbound_rate: {min: 0.5, mean: 1.5, max: 2.5}
    epochs: {train_accuracy: [0.2, 0.5, 0.7, 0.95]}
  - of: {workers: 2}
    place: table 1
    values: {accuracy: 0.5}
claims:
  - {text: two workers are more accurate <b>, place: section 4, explanations: [the seeds are others],
     checks: [{kind: compare, measure: accuracy, of: {workers: 2}, than: {workers: 1}, is: more}]}
  - {text: both learn, place: section 5, checks: [{kind: level, measure: accuracy, is: more, value: 0.5}]}
  - {text: it was fun, place: section 6, unchecked: nobody measures that}
"""


@pytest.fixture
def race(tmp_path: Path) -> Path:
    """A race of the study: one worker is accurate, two are not."""
    made = [
        result("allreduce", workers, 1_000.0, good + seed / 1000, seed=seed)
        for seed in (1, 2, 3) for workers, good in ((1, 0.95), (2, 0.7))
    ]
    write_race(tmp_path, made, "own-full")
    plan = plan_study(parse_study(STUDY, "own.yaml"), "full", Choice(), look=lambda name: None)
    StudyRecord.of(plan).write(tmp_path / "own-full")
    return tmp_path / "own-full"


def test_the_page_of_the_race_has_what_was_published_and_the_claims(race: Path) -> None:
    client = TestClient(ui_app(race.parent, Security(csrf="the-token")), base_url="http://127.0.0.1:8200")
    with client:
        text = client.get(f"/races/{race.name}").text
        (race / "study.json").unlink()
        without = client.get(f"/races/{race.name}").text
    assert text.index("Published claims") < text.index("the seeds are others") < text.index("Published figures and")
    assert text.index("disagrees") < text.index("both learn")
    assert "two workers are more accurate &lt;b&gt;" in text
    assert "Published" not in without


def test_every_form_has_what_was_published_and_the_claims(race: Path) -> None:
    report = with_study(make_report(load_race(race.parent, race.name)))
    pages = [to_html(report, make_pictures(report)), to_markdown(report), to_latex(report)]
    for text in pages:
        assert text.index("Published claims") < text.index("Published figures and ours")
        assert "table 1" in text
        assert "the seeds are others" in text
        assert "nobody measures that" in text
        assert text.index("disagrees") < text.index("both learn")
    assert all("All of it is made up." in text for text in pages[:2])
    assert "two workers are more accurate &lt;b&gt;" in pages[0]
    assert "<b></td>" not in pages[0]
    assert 'id="figure-published-train-accuracy"' in pages[0]
    assert "\\begin{tabular}{p{0.3\\linewidth}" in pages[2]


def test_numbers_of_the_table_are_those_of_runs_and_document(race: Path) -> None:
    report = with_study(make_report(load_race(race.parent, race.name)))
    claims, figures = report.published
    assert [row[2].text for row in claims.rows] == ["disagrees", "agrees", "not checkable here"]
    rows = {(row[0].text.split(",")[1], row[1].text): row for row in figures.rows}
    one = rows[" torch/allreduce 1", "test accuracy"]
    assert [cell.text for cell in one[2:6]] == ["0.9520", "0.9520", "+0.0000", "yes"]
    assert [cell.text for cell in rows[" torch/allreduce 2", "test accuracy"][2:6]] == [
        "0.5000", "0.7020", "+0.2020", "no"]
    memory = rows[" torch/allreduce 1", "memory GB"]
    assert (memory[2].detail, memory[3].detail) == ("0.10 to 0.30", "0.14 to 0.14")
    inbound = rows[" torch/allreduce 1", "inbound MB/s"]
    assert inbound[3].detail == "1.6 to 1.6"  # 2^19 + 2^20 bytes each second


def test_the_file_has_a_line_for_each_published_number_epoch_and_claim(race: Path, tmp_path: Path) -> None:
    told = velodrome.report(race.name, runs=race.parent, format="csv", out=tmp_path / "tables.csv")
    assert str(tmp_path / "tables-published.csv") in told["files"]
    lines = [*csv.DictReader(io.StringIO((tmp_path / "tables-published.csv").read_text(encoding="utf-8")))]
    epochs = [(line["epoch"], line["published"], line["ours"]) for line in lines if line["epoch"]]
    assert [(epoch, published) for epoch, published, _ in epochs] == [("1", "0.2"), ("2", "0.5"), ("3", "0.7"),
                                                                     ("4", "0.95")]
    assert float(epochs[3][2]) == pytest.approx(0.952)
    assert [line["verdict"] for line in lines if line["quantity"] == "claim"] == [
        "disagrees", "agrees", "not checkable here"]


def test_tables_of_sentences_are_split_where_a_page_of_latex_ends(tmp_path: Path) -> None:
    text, reason = "a long conclusion " * 6, "nobody knows " * 9
    claims = "".join(f"  - {{text: {text}{n}, place: section {n}, unchecked: {reason}}}\n" for n in range(36))
    write_race(tmp_path, [result("allreduce", 1)], "own-full")
    plan = plan_study(parse_study(STUDY[:STUDY.index("claims:")] + f"claims:\n{claims}", "own.yaml"), "full", Choice(),
                      look=lambda name: None)
    StudyRecord.of(plan).write(tmp_path / "own-full")
    text = to_latex(with_study(make_report(load_race(tmp_path, "own-full"))))
    parts = [part.partition("\\end{tabular}")[0] for part in text.split("\\begin{tabular}{p{0.3")[1:]]
    counts = [part.count("section") for part in parts]
    assert sum(counts) == 36
    assert max(counts) == 14  # of four lines each: 108 letters in columns of 28, 116 in columns of 42
    assert "\\caption{Published claims (continued).}" in text


def test_the_file_says_how_our_job_differs_from_the_published_one() -> None:
    study = parse_study(STUDY + "scales: {smoke: {job: {epochs: 1}}}\n", "own.yaml")
    plan = plan_study(study, "smoke", Choice(), look=lambda name: None)
    lines = [*csv.DictReader(io.StringIO(to_csv(compare_figures(plan, [], 2), [])))]
    assert len(lines) == 10
    assert {line["differs"] for line in lines} == {"epochs 4 → 1"}


def test_a_race_that_is_no_study_has_the_report_that_it_had(tmp_path: Path) -> None:
    write_race(tmp_path, [result()], "plain")
    report = make_report(load_race(tmp_path, "plain"))
    assert with_study(report) is report
    assert "ublished" not in to_markdown(report)

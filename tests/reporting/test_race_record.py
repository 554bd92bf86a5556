"""Reading races from disk, also damaged ones, and what their processes did over time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from synthetic_races import BEGAN, EXAMPLES, Written, events_of, repeated, result, write_race
from typed_judge import as_result, compare, judge
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events import parse_stored, to_event
from velodrome.events.models import Event
from velodrome.reporting.load import load_race
from velodrome.reporting.series import RunSeries, Span, hosts_of, merged, run_series, totals

pytestmark = pytest.mark.unit


@pytest.fixture
def race(runs: Path) -> Written:
    return write_race(runs, [*repeated([100, 102], strategy="single"), *repeated([180, 182], workers=2)])


def test_a_race_is_read_whole_with_jobs_and_examples(race: Written) -> None:
    record = load_race(race.runs, "made")
    assert len(record.results) == 4
    assert record.results[0].job is not None
    assert record.results[0].job.threads == 1
    assert record.results[0].examples_trained == 4 * EXAMPLES
    assert not record.failures
    assert load_race(Path("elsewhere"), str(race.path)).name == "made"


def test_broken_runs_are_named_and_passed_over(race: Written) -> None:
    first, second, third, fourth = sorted(path for path in race.path.iterdir() if path.is_dir())
    (first / "result.json").write_text('{"status": "fini')
    (second / "job.yaml").write_text("{[")
    (second / "result.json").unlink()
    (third / "result.json").write_text('{"status": "finished"}')
    with (fourth / "events.jsonl").open("ab") as stream:
        stream.write(b'{"time": 1, "kind": "epoch", "validation"\xff\n[]\n')
    record = load_race(race.runs, "made")
    assert {failure.run: failure.status for failure in record.failures} == {
        first.name: "unreadable", second.name: "unreadable", third.name: "unreadable",
    }
    assert [found.run for found in record.results if found.status == "finished"] == [fourth.name]


def test_why_a_run_failed_is_kept_and_attempts_that_did_not_crash_are_not_counted(runs: Path) -> None:
    failed = {**result(status="failed"), "error": {"message": "the loss became nan", "cause": "user"}, "test": None}
    race = write_race(runs, [failed, result(seed=2)])
    record = load_race(runs, "made")
    assert [(failure.run, failure.message) for failure in record.failures] == [
        ("torch-ddp-1w-64b-1-0", "the loss became nan")
    ]
    run = race.path / "torch-ddp-1w-64b-1-0"
    run.rename(run.with_name(f"{run.name}.attempt-1"))
    record = load_race(runs, "made")
    assert record.aside == 1
    assert [found.run for found in record.results] == ["torch-ddp-1w-64b-2-1"]
    assert record.failures == ()
    assert record.missing == ("torch-single-1w-128b-1",)


def test_a_crash_counts_also_when_the_run_was_repeated(runs: Path) -> None:
    crash = {**result(status="failed"), "error": {"message": "worker 0 was killed", "cause": "exit"}, "test": None}
    race = write_race(runs, [crash, result(), result(seed=2), {**result(seed=2, status="interrupted"), "test": None}])
    for number, run in ((0, "torch-ddp-1w-64b-1"), (3, "torch-ddp-1w-64b-2")):
        (race.path / f"{run}-{number}").rename(race.path / f"{run}.attempt-1")
    record = load_race(runs, "made")
    assert [(failure.run, failure.message) for failure in record.failures] == [
        ("torch-ddp-1w-64b-1.attempt-1", "worker 0 was killed")
    ]
    row = compare(record.results)[0]
    assert (row.runs, row.crashed, row.attempts, record.aside) == (2, 1, 3, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("nodes", None), ("nodes", [{"role": "worker"}]), ("history", None), ("seconds", None), ("throughput", 5),
     ("workers", "two"), ("started", "today"), ("started", float("inf")), ("ended", float("nan")),
     ("test", [1]), ("versions", 3)],
)
def test_a_result_that_is_not_what_the_reference_says_is_named_and_skipped(
    race: Written, field: str, value: object
) -> None:
    broken = race.path / "torch-ddp-2w-64b-1-2"
    told = json.loads((broken / "result.json").read_text())
    for content in ({**told, field: value}, {name: kept for name, kept in told.items() if name != field}):
        (broken / "result.json").write_text(json.dumps(content))
        failures = load_race(race.runs, "made").failures
        assert [(failure.run, failure.status) for failure in failures] == [(broken.name, "unreadable")]
        assert field in failures[0].message


def test_a_report_lists_a_result_that_cannot_be_read(velodrome, race: Written) -> None:
    broken = race.path / "torch-ddp-2w-64b-1-2"
    told = json.loads((broken / "result.json").read_text())
    (broken / "result.json").write_text(json.dumps({**told, "started": float("inf"), "nodes": [{"role": "worker"}]}))
    assert velodrome("report", "made", "--runs", race.runs).code == 0
    assert broken.name in (race.path / "report.html").read_text()


@pytest.mark.parametrize("change", [{"workers": "two"}, {"target": "good"}, {"engine": None}])
def test_a_job_that_is_none_is_named_and_skipped(race: Written, change: dict[str, object]) -> None:
    broken = race.path / "torch-ddp-2w-64b-1-2"
    job = yaml.safe_load((broken / "job.yaml").read_text())
    (broken / "job.yaml").write_text(yaml.safe_dump({**job, **change}))
    record = load_race(race.runs, "made")
    assert [(failure.run, failure.status) for failure in record.failures] == [(broken.name, "unreadable")]
    assert next(iter(change)) in record.failures[0].message
    assert len(record.results) == 3


def test_a_job_is_counted_with_as_a_job_reads_it(velodrome, race: Written) -> None:
    file = race.path / "torch-ddp-2w-64b-1-2" / "job.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "workers": "2", "from_another_version": "x"}))
    record = load_race(race.runs, "made")
    assert record.failures == ()
    written = [found.job_as_written or {} for found in record.results]
    assert [fields["workers"] for fields in written].count(2) == 2
    assert "seed" in written[0]
    assert "dtype" not in written[0]
    assert velodrome("report", "made", "--runs", race.runs).code == 0


def test_a_run_that_has_lost_its_job_is_named(race: Written) -> None:
    lost = race.path / "torch-ddp-2w-64b-1-2"
    (lost / "job.yaml").unlink()
    record = load_race(race.runs, "made")
    assert [(failure.run, failure.status) for failure in record.failures] == [(lost.name, "unreadable")]
    assert "job.yaml" in record.failures[0].message
    assert len(record.results) == 3


@pytest.mark.parametrize("text", ["seed: 2022-13-45", "seed: !!int x", "seed: !!bool x"])
def test_values_that_yaml_itself_refuses_are_named_and_skipped(race: Written, text: str) -> None:
    broken = race.path / "torch-ddp-2w-64b-1-2"
    (broken / "job.yaml").write_text(text)
    assert [failure.run for failure in load_race(race.runs, "made").failures] == [broken.name]
    (race.path / "race.yaml").write_text(text)
    with pytest.raises(VelodromeError, match="is not a race file"):
        load_race(race.runs, "made")


def test_a_moment_beyond_every_calendar_is_written_as_it_is(velodrome, runs: Path) -> None:
    race = write_race(runs, [result(started=1e300, ended=1e300), result(workers=2)])
    assert velodrome("report", "made", "--runs", runs).code == 0
    assert "1e+300 s since 1970" in (race.path / "report.html").read_text()


def test_a_race_is_named_by_where_it_lies(race: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(race.path)
    assert load_race(Path("runs"), ".").name == "made"


def test_failures_are_those_of_the_task(runs: Path) -> None:
    error = {"status": "failed", "test": None, "error": {"message": "it broke"}}
    race = write_race(runs, [
        result(), {**result(seed=2), **error}, result(dataset="kmnist"),
        *({**result(dataset="kmnist", seed=seed), **error} for seed in (2, 3)),
        {**result(dataset="mnist"), **error},
    ])
    record = load_race(runs, "made")
    rows = record.judged().rows
    assert {task.task: task.failed for task in record.judged().tasks} == {"digits": 1, "kmnist": 2}
    assert [task.failed for task in judge([], failures=record.failures).by_task] == [4]
    (race.path / "torch-ddp-1w-64b-1-0" / "result.json").write_text('{"status": "finished"}')
    assert load_race(runs, "made").failures[0].task == rows[0].configuration.task


def test_the_target_is_the_one_that_all_runs_share(runs: Path) -> None:
    write_race(runs, [result(target="accuracy>=0.9"), result(target="accuracy>=0.9", seed=2)], "same")
    write_race(runs, [result(target="accuracy>=0.9"), result(seed=2)], "mixed")
    assert load_race(runs, "same").target == "accuracy>=0.9"
    assert load_race(runs, "mixed").target is None


def test_what_is_no_race_is_refused_with_the_way_out(race: Written) -> None:
    with pytest.raises(BadRequest, match=r"no race 'nonsense'.*there are made"):
        load_race(race.runs, "nonsense")
    run = next(path for path in race.path.iterdir() if path.is_dir())
    with pytest.raises(BadRequest, match="is a run, not a race"):
        load_race(race.path, run.name)
    (race.path / "race.yaml").write_text("- just\n- a list\n")
    with pytest.raises(VelodromeError, match="is not a race file"):
        load_race(race.runs, "made")


def series_of(made: dict[str, Any], events: Iterable[Event]) -> RunSeries:
    return run_series(made["started"], hosts_of(as_result(made)), events)


def test_phases_become_spans_on_the_clock_of_the_run() -> None:
    made = result(workers=2, rate=EXAMPLES)
    series = series_of(made, map(to_event, events_of(made)))
    phases = [(span.phase, round(span.start, 3), round(span.end, 3)) for span in series.spans["worker", 1]]
    assert phases == [("import", 0.5, 1.5), ("build", 1.5, 2.0), ("train", 2.0, 6.0)]


def test_a_phase_without_end_lasts_until_the_last_event() -> None:
    made = result()
    events = [
        {"time": BEGAN + 1, "role": "worker", "rank": 0, "kind": "phase", "phase": "train", "state": "begin"},
        {"time": BEGAN + 5, "role": "worker", "rank": 0, "kind": "warning", "message": "late"},
        {"time": "late", "role": "worker", "rank": 0, "kind": "phase"},
        {"time": BEGAN - 5, "role": "worker", "rank": 0, "kind": "phase", "phase": "import", "state": "begin"},
        {"time": BEGAN + 6, "role": "stranger", "rank": 0, "kind": "phase", "phase": "train", "state": "begin"},
        {"time": BEGAN + 4, "role": "worker", "rank": 0, "kind": "resources", "cpu_percent": None},
    ]
    series = series_of(made, filter(None, (parse_stored(json.dumps(event)) for event in events)))
    assert series.spans["worker", 0] == [Span("train", 1.0, 5.0)]
    assert series.samples["worker", 0].seconds == []


def test_totals_add_processes_and_count_a_host_once() -> None:
    made = result(workers=2, rate=EXAMPLES)
    together = totals(series_of(made, map(to_event, events_of(made))))
    assert (together["cpu_percent"].low, together["cpu_percent"].high) == (80.0, 120.0)
    assert together["network_rate"].mean == pytest.approx(2**20)


def test_spans_of_one_phase_are_joined_over_small_gaps() -> None:
    spans = [Span("train", 0, 1), Span("save", 1, 1.01), Span("train", 1.01, 2), Span("train", 3, 4)]
    assert merged(spans, 0.1) == [Span("train", 0, 2), Span("save", 1, 1.01), Span("train", 3, 4)]

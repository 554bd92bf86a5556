"""Comparing made-up results whose answers are known."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from synthetic_races import EXAMPLES, beside, repeated, result
from typed_judge import as_result, compare, judge
from velodrome.cli.output import SafeConsole
from velodrome.cli.race_output import print_comparison
from velodrome.job.values import Target
from velodrome.judge.attempts import instance_hours, instances
from velodrome.judge.compare import Row, tasks_of
from velodrome.judge.configuration import Configuration, distinguishing_fields, names_of, varied
from velodrome.judge.measures import (
    largest_process,
    step_bytes,
    thesis_rate,
    time_to_target,
)
from velodrome.reporting.curves import over_epochs, over_time, over_workers
from velodrome.reporting.figures import MOST_WORDS, Looks, bar_words, cut, draw_race, race_figure, rest_of
from velodrome.reporting.tables import best_of, bests_of

pytestmark = pytest.mark.unit


def test_speedup_is_over_single_and_scaling_over_ones_own_single_worker() -> None:
    rows = compare([result("single", 1, 100.0), result("ddp", 1, 80.0), result("ddp", 2, 120.0)])
    two = next(row for row in rows if row.workers == 2)
    assert two.speedup is not None
    assert two.scaling is not None
    assert two.efficiency is not None
    assert two.speedup.estimate == pytest.approx(1.2)
    assert two.scaling.estimate == pytest.approx(1.5)
    assert two.efficiency.estimate == pytest.approx(0.6)
    assert not two.speedup.has_interval


def test_repeated_runs_give_speedup_an_interval_and_efficiency_the_same_divided() -> None:
    rows = compare([*repeated([100, 102, 98], strategy="single"), *repeated([180, 184, 176], workers=2)])
    two = next(row for row in rows if row.workers == 2)
    assert two.speedup is not None
    assert two.efficiency is not None
    assert two.speedup.above_one
    assert two.efficiency.low == pytest.approx((two.speedup.low or 0) / 2)
    assert two.efficiency.below_one


def test_every_engine_and_batch_is_measured_against_its_own_single() -> None:
    rows = compare([
        result("single", 1, 100.0), result("single", 1, 400.0, engine="tensorflow"),
        result("single", 1, 200.0, batch_size=128), result("ddp", 2, 150.0),
        result("ddp", 2, 150.0, batch_size=128), result("parameter-server", 2, 100.0, engine="tensorflow", servers=1),
    ])
    found = {row.name: row.speedup and row.speedup.estimate for row in rows}
    assert found["torch/ddp with 2 workers, batch 64"] == pytest.approx(1.5)
    assert found["torch/ddp with 2 workers, batch 128"] == pytest.approx(0.75)
    assert found["tensorflow/parameter-server with 2 workers and 1 server"] == pytest.approx(0.25)


def test_repetitions_become_a_mean_and_failures_are_counted_apart() -> None:
    rows = compare([*repeated([90, 110, 100], workers=2), result("ddp", 2, 1.0, status="failed")])
    assert len(rows) == 1
    assert (rows[0].runs, rows[0].failed, round(rows[0].examples_per_second, 2)) == (3, 1, 99.67)
    assert rows[0].speedup is None
    assert rows[0].representative.throughput.examples_per_second == 100.0


def test_a_seed_is_a_repetition_and_any_other_field_of_the_job_a_configuration() -> None:
    made = result(seed=1)
    assert Configuration.of(as_result(made)) == Configuration.of(as_result(result(seed=2)))
    third = as_result({**made, "job": {"dtype": "float32", "seed": 1}})
    fourth = as_result({**made, "job": {"dtype": "float64", "seed": 1}})
    assert Configuration.of(third) != Configuration.of(fourth)
    assert list(varied(map(Configuration.of, (third, fourth)))) == ["dtype"]
    names = names_of([Configuration.of(third), Configuration.of(fourth)])
    assert names[Configuration.of(fourth).key] == "torch/ddp with 1 worker, dtype float64"
    unit, byte = (as_result({**made, "job": {"pixels": pixels}}) for pixels in ("unit", "byte"))
    assert list(varied(map(Configuration.of, (unit, byte)))) == ["pixels"]
    assert Configuration.of(unit).task == Configuration.of(byte).task, "both are compared in one table"


def test_runs_of_an_earlier_version_are_of_the_same_configuration() -> None:
    job = {"dataset": "digits", "engine": "torch", "strategy": "ddp", "workers": 2, "batch_size": 64,
           "batch_scope": "global", "learning_rate": 0.001}
    older, newer = ({**result(workers=2, seed=seed), "job": {**job, **more}}
                    for seed, more in ((1, {}), (2, {"sharding": "auto", "keep_going": False})))
    begun = {**job, "job": {**job, "seed": 3}, "run": "ddp-3", "status": "interrupted"}
    rows = compare([older, newer, begun])
    assert [(row.runs, row.failed) for row in rows] == [(2, 1)]


def test_no_two_configurations_have_the_same_name() -> None:
    rates = [{**result(learning_rate=rate), "job": {"learning_rate": rate}} for rate in (0.1, 0.1 + 1e-9)]
    assert [row.name for row in compare(rates)] == [
        "torch/ddp with 1 worker, rate 0.1", "torch/ddp with 1 worker, rate 0.100000001",
    ]
    unnamed = [{**result(), "consistency": kind, "job": {"consistency": kind}} for kind in ("bsp", "ssp")]
    assert [row.name for row in compare(unnamed)] == ["torch/ddp with 1 worker", "torch/ddp with 1 worker (2)"]


def test_time_to_target_ends_with_the_epoch_that_reached_it() -> None:
    made = result(rate=EXAMPLES / 3, accuracy=0.8, epochs=4)
    assert time_to_target(as_result(made), Target.parse("accuracy>=0.5")) == pytest.approx(9.0)
    assert time_to_target(as_result(made), Target.parse("loss<=1.0")) == pytest.approx(6.0)
    assert time_to_target(as_result(made), Target.parse("accuracy>=0.9")) is None
    rows = compare([made, result(rate=EXAMPLES / 3, accuracy=0.4, seed=2)], Target.parse("accuracy>=0.5"))
    assert (rows[0].reached, rows[0].runs) == (1, 2)
    assert best_of(rows, "time_to_target") is None


def test_batches_by_the_theses_formula_count_all_of_training() -> None:
    made = result(rate=100.0, batch_size=50, epochs=3)
    assert thesis_rate(as_result(made)) is None
    made["examples_trained"] = 3 * EXAMPLES
    assert thesis_rate(as_result(made)) == pytest.approx(3 * EXAMPLES * 1 / (50 * made["seconds"]["train"]))


def test_network_counts_a_host_once_and_cpu_every_process() -> None:
    one, two = (compare([result(workers=4, hosts=hosts)])[0] for hosts in (1, 2))
    assert one.mean("network_bytes") == 4 * 2**20
    assert two.mean("network_bytes") == 8 * 2**20
    assert one.mean("cpu_percent") == two.mean("cpu_percent") == 200.0


def test_cost_is_for_processes_or_hosts_and_the_whole_run_or_until_the_target() -> None:
    made = result(workers=4, hosts=2, rate=EXAMPLES / 3, accuracy=0.8)
    read = as_result(made)
    assert (instances(read, "process"), instances(read, "host")) == (4, 2)
    assert instance_hours(read, None, "process") == pytest.approx(4 * made["seconds"]["total"] / 3600)
    assert instance_hours(read, Target.parse("accuracy>=0.4"), "host") == pytest.approx(2 * (2.0 + 2 * 3.1) / 3600)
    assert instance_hours(read, Target.parse("accuracy>=0.9"), "host") is None


def test_staleness_shares_and_perplexity_are_shown_where_there_are_any() -> None:
    made = result(staleness={"mean": 1.5, "max": 4}, shares={"compute": 0.7, "wait": 0.2, "communicate": 0.1})
    row = compare([made])[0]
    assert (row.mean("staleness_mean"), row.mean("staleness_max")) == (1.5, 4)
    assert row.mean("share_wait") == 0.2
    assert compare([result()])[0].mean("share_wait") is None
    made["test"]["perplexity"] = 120.0
    assert compare([made])[0].mean("perplexity") == 120.0


def test_a_row_is_json_with_means_ranges_and_intervals() -> None:
    rows = compare([*repeated([100, 102], strategy="single"), *repeated([180, 184], workers=2)])
    flat = json.loads(json.dumps([row.as_json() for row in rows]))
    assert flat[1]["examples_per_second"] == pytest.approx((180 * 184) ** 0.5)
    assert flat[1]["range"]["examples_per_second"] == [180, 184]
    assert len(flat[1]["speedup_interval"]) == 2
    assert flat[0]["speedup_interval"] is None


def shown(rows: list[Row], *, styles: bool = False) -> str:
    console = SafeConsole(width=200, record=True, force_terminal=styles, file=io.StringIO())
    print_comparison(console, rows, "velodrome report made")
    return console.export_text(styles=styles)


def images_and_texts() -> list[dict[str, Any]]:
    """Two data sets of images, the one easy and the other hard, and a text."""
    text = {"perplexity": 120.0, "accuracy": None, "loss": 4.8, "total": 10}
    return [
        result("single", 1, 100.0, 0.99), result("ddp", 2, 150.0, 0.98),
        result("single", 1, 90.0, 0.80, dataset="kmnist"), result("ddp", 2, 140.0, 0.85, dataset="kmnist"),
        result("single", 1, 900.0, dataset="ptb", model="lstm-small", test=text),
        result("ddp", 2, 990.0, dataset="ptb", model="lstm-small", test={**text, "perplexity": 130.0}),
    ]


def test_the_table_marks_runs_beside_other_programs() -> None:
    results = [result("single", 1, 100.0), beside(result("ddp", 2, 120.0), 0.9)]
    text = shown(compare(results))
    assert "torch/ddp *" in text
    assert "torch/single *" not in text
    assert "* other programs were running at the same time" in text
    assert "*" not in shown(compare(results[:1]))


def test_table_and_figure_show_every_configuration(tmp_path: Path) -> None:
    results = [result("single", 1, 100.0), result("ddp", 1, 80.0), result("ddp", 2, 120.0)]
    rows = compare(results)
    text = shown(rows)
    assert "torch/single" in text
    assert "1.50" in text
    (tmp_path / "race.png").symlink_to(tmp_path / "file of the user's")
    path = race_figure(rows, tmp_path / "race.png", "a race")
    assert not path.is_symlink(), "a folder that somebody sent decides about no other file"
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert judge(results).answers[""].verdict.startswith("use ")


def test_the_figure_of_a_race_has_ranges_and_its_legend_covers_no_data() -> None:
    results = [*repeated([100, 110, 90], strategy="single"), *repeated([180, 200, 150], workers=2), result("ddp", 1)]
    figure = draw_race(compare(results), "a race")
    figure.draw_without_rendering()
    bars = [container.errorbar for container in figure.axes[0].containers if hasattr(container, "patches")]
    assert sum(bar is not None for bar in bars) == 2
    assert sum(bar is None for bar in bars) == 1  # a single run has no range
    (legend,) = figure.legends
    assert not any(legend.get_window_extent().overlaps(panel.get_tightbbox()) for panel in figure.axes)
    assert all(panel.get_legend() is None for panel in figure.axes)


def test_bars_of_each_model_have_an_axis_of_their_own() -> None:
    dense = [*repeated([9000, 9100], strategy="single"), result("ddp", 2, 800.0)]
    fast = [run | {"model": "dense-128"} for run in dense]
    slow = [run | {"model": "resnet20"} for run in repeated([10, 11], strategy="allreduce", workers=2)]
    figure = draw_race(compare([*fast, *slow]), "a race")
    bars = [panel for panel in figure.axes if panel.get_xlabel().startswith("training throughput")]
    assert {panel.get_title(loc="left"): [label.get_text() for label in panel.get_yticklabels()] for panel in bars} == {
        "dense-128": ["torch\nddp", "torch\nsingle"], "resnet20": ["torch\nallreduce"]}
    [narrow] = [panel for panel in bars if panel.get_title(loc="left") == "resnet20"]
    assert max(narrow.get_xlim()) < 100


def test_a_configuration_looks_the_same_in_every_figure_of_a_race() -> None:
    rows = compare([
        *repeated([300, 310, 290], workers=2), *repeated([100, 110, 90], strategy="single"),
        *repeated([200, 210, 190], strategy="allreduce", workers=2),
    ])
    looks = Looks.of(rows)
    assert looks == Looks.of(rows[::-1])
    in_race = {line.get_label(): (line.get_color(), line.get_marker()) for line in draw_race(rows, "").axes[1].lines}
    by_time, by_epoch = over_time(rows[::-1], None, looks), over_epochs(rows[::-1], looks)
    assert by_time is not None
    assert by_epoch is not None
    in_report = {line.get_label(): (line.get_color(), line.get_marker()) for line in by_time.figure.axes[0].lines}
    assert in_race == in_report
    assert len({*in_race.values()}) == 3
    for picture in (by_epoch, over_workers(rows[::-1], looks)):
        found = {(line.get_color(), line.get_marker()) for panel in picture.figure.axes for line in panel.lines}
        assert found >= {*in_race.values()}


def test_a_curve_of_one_epoch_names_its_workers_because_a_point_has_no_line_style() -> None:
    def words(epochs: int, *workers: int) -> list[list[str]]:
        rows = compare([result(workers=count, rate=100.0 * count, epochs=epochs) for count in workers])
        by_time, by_epoch = over_time(rows, None, Looks.of(rows)), over_epochs(rows, Looks.of(rows))
        assert by_time is not None
        assert by_epoch is not None
        panels = draw_race(rows, "").axes[1], by_time.figure.axes[0], by_epoch.figure.axes[0]
        return [[text.get_text() for text in panel.texts] for panel in panels]

    assert words(1, 1, 2) == [["1 w", "2 w"]] * 3
    assert words(1, 2) == words(2, 1, 2) == [[]] * 3


def test_a_figure_of_a_single_epoch_has_no_fractions_of_epochs() -> None:
    rows = compare([result(workers=1, epochs=1), result("allreduce", workers=2, epochs=1)])
    picture = over_epochs(rows, Looks.of(rows))
    assert picture is not None
    picture.figure.draw_without_rendering()
    assert {tick.get_text() for panel in picture.figure.axes for tick in panel.get_xticklabels()} == {"1"}


def test_a_figure_of_many_fields_cuts_their_words_and_keeps_its_size(tmp_path: Path) -> None:
    fields = ("learning_rate", "epochs", "batch_scope", "schedule", "warmup", "ema", "weight_decay", "label_smoothing",
              "optimizer", "milestones", "scale_rate", "accumulate", "sharding", "target", "threads")
    rows = compare([{**result(workers=2), "job": {field: f"{field} {number}" for field in fields}} for number in
                    range(20)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of axes without room
        assert race_figure(rows, tmp_path / "race.png", "a race").is_file()
    assert {len(cut(words)) for words in bar_words(rows).values()} == {MOST_WORDS}


def test_the_best_of_a_column_is_that_of_its_task() -> None:
    rows = compare(images_and_texts())
    assert set(bests_of(rows, "accuracy").values()) == {0.99, 0.85, None}
    assert set(bests_of(rows, "perplexity").values()) == {120.0, None}
    assert {round(best or 0) for best in bests_of(rows, "examples_per_second").values()} == {150, 140, 990}


def test_images_and_texts_have_both_columns_and_a_best_of_each_task(tmp_path: Path) -> None:
    rows = compare(images_and_texts())
    text = shown(rows)
    assert "accuracy" in text
    assert "perplexity" in text
    assert "kmnist" in text
    marked = shown(rows, styles=True)
    for best in ("0.9900", "0.8500", "120.00"):
        assert f"\x1b[1;32m{best}" in marked
    for other in ("0.9800", "0.8000", "130.00"):
        assert f"\x1b[1;32m{other}" not in marked
    assert race_figure(rows, tmp_path / "race.png", "a race").is_file()


@pytest.mark.parametrize(
    ("field", "values"),
    [("dataset", ("digits", "kmnist")), ("learning_rate", (0.1, 0.01)), ("epochs", (1, 10)), ("threads", (1, 2)),
     ("batch_scope", ("global", "per-worker")), ("target", (None, "accuracy>=0.9"))],
)
def test_rows_and_bars_that_differ_in_any_field_have_words_of_their_own(field: str, values: tuple[Any, Any]) -> None:
    rows = compare([{**result(workers=2), "job": {field: value}} for value in values])
    assert len(rows) == 2
    assert len({line.split("0.95")[0].strip() for line in shown(rows).splitlines() if "torch/ddp" in line}) == 2
    assert len(set(bar_words(rows).values())) == 2


@pytest.mark.parametrize(
    ("places", "short"),
    [(("shards:hdfs://10.79.0.2:9000/data/mnist", "shards:hdfs://10.79.0.2:9000/data/kmnist"), {"mnist", "kmnist"}),
     (("shards:hdfs://name/data/mnist", "shards:s3://bucket/data/mnist"), {"name/data/mnist", "bucket/data/mnist"}),
     (("folder:/home/me/fruits/", "digits"), {"fruits", "digits"})],
)
def test_pictures_name_data_at_an_address_by_what_differs(places: tuple[str, str], short: set[str]) -> None:
    rows = compare([result(workers=2, dataset=place) for place in places])
    assert set(tasks_of(rows)) == short
    assert set(bar_words(rows).values()) == {f"2 workers, dataset {name}" for name in short}
    assert set(rest_of(rows).values()) == {f"dataset {name}" for name in short}
    assert all(place in " ".join(row.name for row in rows) for place in places)


def test_what_follows_from_the_strategy_is_not_said_again() -> None:
    mixed = [result(), result("parameter-server", 2, servers=1)]
    assert distinguishing_fields([Configuration.of(as_result(made)) for made in mixed]) == []


def test_what_is_sent_in_a_step_counts_every_host_once() -> None:
    run = result(workers=4, hosts=2, epochs=2, batch_size=100)
    assert run["steps"] == 24
    assert step_bytes(as_result(run)) == 2 * (3 * 2**20 + 2**21) / 24
    assert step_bytes(as_result({**run, "steps": 0})) is None
    assert step_bytes(as_result({**run, "nodes": []})) is None


def test_the_largest_process_is_the_one_that_had_most_memory_at_any_time() -> None:
    run = result(workers=2)
    run["nodes"][1] = {**run["nodes"][1], "memory_bytes": {"mean": 5.0, "min": 5, "max": 2**31}}
    assert largest_process(as_result(run)) == 2**31
    assert largest_process(as_result({**run, "nodes": []})) is None


def of_script(arguments: str, workers: int = 1, *, history: bool = False, rate: float | None = None) -> dict[str, Any]:
    job = {"script": "train.py", "script_args": arguments, "workers": workers, "engine": "torch", "strategy": "script",
           "dataset": "script", "model": "train.py"}
    rows = [{"epoch": 1, "train_loss": 1.5, "seconds": 1.0, "evaluate_seconds": 0.0}] if history else []
    return {**result("script", workers, script="train.py", job=job), "task": "script", "test": None, "history": rows,
            "throughput": {"examples_per_second": rate, "batches_per_second": None, "warmup_steps": 0}}


def test_arguments_of_scripts_are_told_apart_by_what_differs_in_names_bars_legend_and_table() -> None:
    common = "--data /a/very/long/path/to/some/data/that/nobody/reads --epochs 100"
    rows = compare([of_script(f"{common} --lr {rate}") for rate in ("0.1", "0.01")])
    assert [row.name for row in rows] == [
        "torch/script with 1 worker, arguments --lr 0.1", "torch/script with 1 worker, arguments --lr 0.01"]
    assert [cut(words) for words in bar_words(rows).values()] == [
        "1 worker, arguments --lr 0.1", "1 worker, arguments --lr 0.01"]
    assert [*rest_of(rows).values()] == ["arguments --lr 0.1", "arguments --lr 0.01"]
    text = shown(rows)
    assert "--lr 0.1 " in text
    assert "--lr 0.01 " in text
    assert "/a/very" not in text


@pytest.mark.parametrize(
    ("history", "rate", "labels"),
    [
        pytest.param(False, None, ["time of a whole run (s)"], id="nothing"),
        pytest.param(True, 500.0, ["training throughput (examples/s)", "training time (s, logarithmic)"], id="loss"),
        pytest.param(False, 500.0, ["training throughput (examples/s)"], id="examples"),
    ],
)
def test_the_figure_of_scripts_has_no_panel_without_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: bool, rate: float | None, labels: list[str]
) -> None:
    figures: list[Figure] = []
    save = Figure.savefig

    def kept(figure: Figure, *words: Any, **more: Any) -> None:
        figures.append(figure)
        save(figure, *words, **more)

    monkeypatch.setattr(Figure, "savefig", kept)
    race_figure(compare([of_script("--lr 1", workers, history=history, rate=rate) for workers in (1, 2)]),
                tmp_path / "race.png", "a race")
    panels = figures[0].axes
    assert [panel.get_xlabel() for panel in panels] == labels
    assert all(panel.has_data() for panel in panels)
    assert not history or panels[1].get_ylabel() == "train loss"
    rows = compare([of_script("--lr 1", count, rate=rate) for count in (1, 2)])
    workers = over_workers(rows, Looks.of(rows))
    assert all(panel.has_data() for panel in workers.figure.axes)


def test_what_follows_from_the_model_is_in_no_name_and_no_column() -> None:
    small = {"model": "linear", "optimizer": "adam", "epochs": 15}
    deep = {"model": "resnet20", "optimizer": "momentum", "epochs": 2}
    rows = compare([result(strategy, workers, **fields) for fields in (small, deep)
                    for strategy, workers in (("single", 1), ("ddp", 2))])
    assert [row.name for row in rows] == [
        "torch/single with 1 worker, model linear", "torch/ddp with 2 workers, model linear",
        "torch/single with 1 worker, model resnet20", "torch/ddp with 2 workers, model resnet20",
    ]
    assert "momentum" not in shown(rows)

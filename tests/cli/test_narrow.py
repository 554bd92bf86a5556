"""In a terminal of any width and in a pipe, no path, name or number is cut, and what is left out is named."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich import box
from rich.table import Table

from synthetic_races import repeated, result, write_race
from typed_judge import as_result, compare
from velodrome.cli import console as consoles
from velodrome.cli.board import Board
from velodrome.cli.output import SafeConsole, least_width, print_table
from velodrome.cli.race_output import print_comparison
from velodrome.cli.train import print_summary
from velodrome.job.names import expand
from velodrome.job.race import parse_race

pytestmark = pytest.mark.unit

WIDTHS = (20, 40, 60, 80, 100, 200)
NAME = "a-run-with-quite-a-long-name-as-they-are-by-default-128b-261116-101500"
ROWS = compare([*repeated([1234567, 1240000], strategy="single"), *repeated([2345678, 2350000], workers=2)])


def screen(width: int, *, terminal: bool = True) -> SafeConsole:
    return SafeConsole(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)


def text_of(console: SafeConsole) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("look", [{}, {"show_header": False}, {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)}])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_breaks_lines_between_words_only(width: int, look: dict[str, Any]) -> None:
    table = Table("name", "sentence", "number", **look)
    table.columns[0].no_wrap = True
    words = ["two words", "several words beside /a/path/that/has/to/be/copied/in/one/piece and more", "1,234,567.89"]
    table.add_row(*words)
    console = screen(width)
    least = least_width(console, table)
    print_table(console, table)
    shown = text_of(console)
    assert all(word in shown for word in ["two words", *words[1].split(), words[2]])
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= max(width, least)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_drops_columns_and_names_them(width: int) -> None:
    console = screen(width)
    print_comparison(console, ROWS, "velodrome report made")
    shown = text_of(console)
    assert "torch/single" in shown
    assert "…" not in shown
    note = re.search(r"Not shown, because the terminal is (\d+) columns wide: (.*)\. `velodrome report made`", shown)
    every = {"examples /s": "1,237,281", "speedup": "1.90", "memory MiB": "256"}
    if width >= 100:
        assert note is None
    for heading, number in every.items():
        assert (number in shown) is not (note is not None and heading in note[2]), heading
    if note:
        assert note[1] == str(width)


def test_a_comparison_in_a_pipe_has_every_column() -> None:
    console = screen(20, terminal=False)
    print_comparison(console, ROWS, "velodrome report made")
    assert "Not shown" not in text_of(console)
    assert all(heading in text_of(console) for heading in ("accuracy", "speedup", "start-up", "memory"))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_summary_of_a_run_holds_its_path_in_one_piece(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    path = f"/home/somebody/with a space/projects/runs/{NAME}"
    print_summary({**result(rate=1234567.0), "run": NAME, "path": path})
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == NAME
    assert f"stored in {path}" in shown.splitlines()
    assert "1,234,567" in shown
    assert "…" not in shown


def test_commands_in_a_pipe_cut_nothing(velodrome, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    race = write_race(runs, [{**one, "dataset": "path:/a/long/path/to/the/pictures/of/somebody"} for one in
                             (result("single", 1, 1234567.0), result("ddp", 2, 2345678.0))], "first")
    names = sorted(path.name for path in race.path.iterdir() if path.is_dir())
    commands = (
        ("runs", "compare", *(f"first/{name}" for name in names)), ("runs", "list", "--all"), ("runs", "show", "first"),
    )
    for words in commands:
        done = velodrome(*words, "--runs", runs)
        assert done.code == 0, done.err
        assert "…" not in done.out
        assert all(f"first/{name}" in done.out for name in names), done.out
    assert "1,234,567" in velodrome("runs", "compare", *(f"first/{name}" for name in names), "--runs", runs).out
    assert str(race.path) in velodrome("report", "first", "--runs", runs).out
    for words in (("engines",), ("data", "list"), ("study", "show", "kouskouras-2022")):
        assert "…" not in velodrome(*words).out
    assert re.search(r"^mnist +54,000 / 6,000 / 10,000 +28×28\S* +10 .* (yes|no)$", velodrome("data", "list").out, re.M)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_what_moves_while_jobs_run_cuts_no_number(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consoles, "error_console", screen(width))
    bar = consoles.JobProgress()._bar
    bar.add_task("epoch 12 of 100", total=100, completed=42, note="1,234,567 examples/s  perplexity 12345.67")
    console = screen(width)
    console.print(bar.get_renderable())
    assert all(number in text_of(console) for number in ("42%", "1,234,567", "12345.67"))
    made = expand(parse_race({"vary": {"entry": ["torch/ddp", "tensorflow/parameter-server:2"]}}))
    board = Board(screen(width), made, {entry.name: 10.0 for entry in made})
    board.stored(made[0], as_result(result(rate=1234567.0, accuracy=0.98765)))
    console = screen(width)
    console.print(board)
    shown = text_of(console)
    hidden = re.search(r"\(not\s+shown:\s+([^)]*)\)", shown)
    for heading, number in {"accuracy": "0.9877", "examples/s": "1,234,567"}.items():
        assert (number in shown) is not (hidden is not None and heading in hidden[1]), heading
    assert max(map(len, shown.splitlines())) <= width

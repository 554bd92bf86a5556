"""Text from outside never acts on a terminal or a page, and never floods them: class names, words, files, messages."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.table import Table
from rich.text import Text

from synthetic_races import repeated, result, write_race
from velodrome.cli.output import SafeConsole
from velodrome.job.job import Job
from velodrome.printable import LONGEST_LINE, bytes_text, printable, shown
from velodrome.run.store import Store

#: Sets the window's title, clears the screen, moves the cursor, turns the direction of writing; and markup of rich.
ATTACK = "\x1b]0;owned\x07\x1b[2J\r\x9b1m\u202e[bold]x[/red]"
HUGE = "w" * 3_000_000


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def assert_harmless(text: str) -> None:
    assert not (found := re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)), found
    assert max(map(len, text.splitlines()), default=0) <= 2 * LONGEST_LINE


def store_run(runs: Path, name: str, **fields: object) -> None:
    run = Store(runs).create(name, Job())
    (run.path / "result.json").write_text(json.dumps({**result(), **fields}))
    run.close()


def test_control_characters_are_shown_and_not_obeyed():
    assert shown("a\x1b[31mb\nc") == "a\\x1b[31mb\\nc"
    assert printable("a\x1b[31mb\nc\td") == "a\\x1b[31mb\nc\td"
    assert shown("Grüße, 漢字 ✓ and 'quotes'") == "Grüße, 漢字 ✓ and 'quotes'"
    assert shown("a name\udcff") == "a name\\udcff"


def test_a_huge_word_is_shortened_and_a_path_is_not():
    assert len(shown(HUGE)) < 130
    assert len(printable(f"{HUGE}\n{HUGE}")) < 2 * LONGEST_LINE + 10
    path = "/" + "d" * 4095
    assert printable(path) == path


@pytest.mark.parametrize(("count", "text"), [
    (0, "0 bytes"), (812, "812 bytes"), (1024, "1.0 KiB"), (20_000_000, "19.1 MiB"), (2**40, "1,024.0 GiB"),
])
def test_an_amount_of_memory_has_the_unit_that_suits_it(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize("given", [ATTACK.replace("[/red]", ""), Text(ATTACK)])
def test_a_console_adds_colours_of_its_own_only(given):
    stream = io.StringIO()
    console = SafeConsole(file=stream, force_terminal=True, width=200)
    table = Table("[bold green]heading[/bold green]", title="title")
    table.add_row(given)
    console.print(table)
    printed = stream.getvalue()
    assert "\x1b[1;32mheading" in printed
    assert "\\x1b]0;owned" in printed
    assert_harmless(re.sub(r"\x1b\[[0-9;]*m", "", printed))


def test_words_of_a_text_are_escaped_and_shortened(velodrome, tmp_path):
    Path("book.txt").write_text(f"{ATTACK} {HUGE} a b\n" * 3 + "a b c\n" * 40)
    done = velodrome("data", "show", "text:book.txt")
    assert done.code == 0, done.text[:1000]
    assert "\\x1b]0;owned" in done.out
    assert len(done.text) < 5_000
    assert_harmless(done.text)


def test_class_and_file_names_are_escaped(velodrome, tmp_path):
    for name in ("plain", ATTACK.replace("/", "|")):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(5):
            Image.fromarray(np.full((8, 8, 3), 40 * number, np.uint8)).save(folder / f"{number}.png")
    (folder / f"{ATTACK.replace('/', '|')}.png").write_text("no picture")
    failed = velodrome("data", "show", "path:photos")
    assert failed.code == 2
    assert "no image of a known format" in failed.err
    skipped = velodrome("data", "show", "path:photos", "--bad-data", "skip")
    assert skipped.code == 0, skipped.text
    assert "\\x1b]0;owned" in skipped.out
    assert_harmless(failed.text + skipped.text)


def test_the_name_of_a_folder_is_escaped_where_it_is_refused(velodrome):
    done = velodrome("data", "prepare", f"path:{ATTACK}{'x' * 100_000}")
    assert done.code == 2
    assert_harmless(done.text)
    assert len(done.text) < 2 * LONGEST_LINE


def test_results_from_elsewhere_are_escaped(velodrome, runs):
    names = [ATTACK, HUGE, "plain"]
    confused = [[3, 9, 0], [8, 1, 0], [0, 0, 2]]
    store_run(runs, "mine", run=ATTACK, path=ATTACK, model=ATTACK, class_names=names, confusion=confused)
    store_run(runs, "failed", status="failed", error={"message": f"{ATTACK} {HUGE}"})
    (runs / ATTACK.replace("/", "|")).mkdir()
    (runs / ATTACK.replace("/", "|") / "result.json").write_text("{")
    for words in (("list",), ("show", "mine"), ("show", "failed"), ("check",), ("compare", "mine", "mine")):
        done = velodrome("runs", *words, "--runs", runs)
        assert "Traceback" not in done.text
        assert_harmless(done.text)
    shown_run = velodrome("runs", "show", "mine", "--runs", runs)
    assert "most confused" in shown_run.out
    assert "[yellow]" not in shown_run.out
    assert "[bold]x[/red]" in shown_run.out


def test_a_race_from_elsewhere_is_escaped_on_the_terminal_and_on_its_page(velodrome, runs):
    script = "<script>alert(1)</script>"
    names = [f"{ATTACK}{script}", f"$\\frac{{{HUGE[:30_000]}", "plain"]
    more = {"class_names": names, "confusion": [[3, 9, 0], [8, 1, 0], [0, 0, 2]]}
    results = [*repeated([1000, 1010], strategy="single", **more), *repeated([1900, 1910], workers=2, **more)]
    folder = write_race(runs, results, "first").path
    for file in folder.glob("*/result.json"):
        fields = json.loads(file.read_text())
        fields["versions"] = {"torch": f"{ATTACK}{script}"}
        file.write_text(json.dumps(fields))
    bad = {**json.loads(file.read_text()), "status": "failed", "error": {"message": ATTACK + script}}
    file.write_text(json.dumps(bad))
    for words in (("recommend", "first"), ("report", "first"), ("report", "first", "--format", "markdown")):
        done = velodrome(*words, "--runs", runs)
        assert done.code == 0, done.text
        assert_harmless(done.text)
    page = (folder / "report.html").read_text()
    assert script not in page
    assert "\x1b" not in page
    assert HUGE[:1000] not in page
    assert "\x1b" not in (folder / "report.md").read_text()


def test_python_prints_json_as_ascii(velodrome, runs):
    store_run(runs, "mine", model=ATTACK)
    done = velodrome("runs", "show", "mine", "--runs", runs, "--json")
    assert_harmless(re.sub(r"w{1000,}", "", done.out.replace("\n", "")))
    assert done.json()["model"] == ATTACK

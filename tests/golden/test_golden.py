"""What commands print and pages show about stored runs is what it was, to the letter.

`python tests/golden/regenerate.py` stores what they print now. README.md says what is covered and how to read it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cases
import normal
import pytest
import typer

from velodrome.cli.main import COMMANDS, loaded

Command = Callable[..., Any]
Golden = Callable[[str, str], None]
ROOT = Path(__file__).resolve().parents[2]
EXPECTED = Path(__file__).resolve().parent / "expected"
#: Set by `regenerate.py`.
REGENERATE = "VELODROME_REGENERATE_GOLDEN"
#: Files that a command writes and that are recorded below its output, by how they end.
_WRITTEN = {".csv": None, ".md": None, ".tex": None, ".html": normal.text_of}


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()}


def _session(velodrome: Command, work: Path, lines: tuple[str, ...]) -> str:
    """Commands one after another with what each printed and wrote, as a terminal would show them."""
    places, parts = normal.places(work, ROOT), []
    for line in lines:
        before = _files(work)
        done = velodrome(*shlex.split(line))
        parts.append(f"$ velodrome {line}")
        # JSON is laid out after folders have got their words, which are of one length everywhere.
        parts += [normal.json_lines(row) or row for row in normal.plain(done.out, places).splitlines()]
        if done.err.strip():
            parts.append("[stderr]\n" + normal.plain(done.err, places))
        if done.code:
            parts.append(f"[exit code {done.code}]")
        changed = [path for path, state in _files(work).items() if before.get(path) != state]
        for path in sorted(changed):
            parts.append(f"[wrote {path.relative_to(work)}]")
            if path.suffix in _WRITTEN:
                convert = _WRITTEN[path.suffix] or str
                parts.append(normal.plain(convert(path.read_text(encoding="utf-8")), places))
        parts.append("")
    return "\n".join(parts)


@pytest.mark.parametrize("name", cases.COMMANDS)
def test_commands_print_what_they_printed(velodrome: Command, work: Path, golden: Golden, name: str) -> None:
    golden(name, _session(velodrome, work, cases.COMMANDS[name]))


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    for name, one in getattr(command, "commands", {}).items():
        yield from _commands(one, (*words, name))


@pytest.mark.parametrize("name", ["velodrome", *COMMANDS])
def test_help_is_what_it_was(velodrome: Command, work: Path, golden: Golden, name: str) -> None:
    every = [()] if name == "velodrome" else _commands(typer.main.get_command(loaded(name)), (name,))
    golden(f"help/{name}", _session(velodrome, work, tuple(" ".join([*words, "--help"]) for words in every)))


@pytest.mark.skipif(REGENERATE in os.environ, reason="not all of them are written yet")
def test_no_expected_file_is_left_over() -> None:
    helps = {f"help/{name}" for name in ("velodrome", *COMMANDS)}
    stored = {str(file.relative_to(EXPECTED).with_suffix("")) for file in EXPECTED.rglob("*.txt")}
    assert stored == {*cases.COMMANDS, *cases.PAGES, "web-model", "web-form", *helps}

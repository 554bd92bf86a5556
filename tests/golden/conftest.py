"""The surroundings of a recorded command: a folder with the stored runs, two cores, a fixed terminal and no user."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
EXPECTED, STORED = HERE / "expected", HERE / "stored"
#: Set by `regenerate.py`: outputs are written down instead of compared.
REGENERATE = "VELODROME_REGENERATE_GOLDEN"
WIDTH = 100
_MOST_LINES = 120
_DROPPED = ("VELODROME_DATA_MIRROR", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE", "GITHUB_ACTIONS",
            "TERMINAL_WIDTH", "_TYPER_FORCE_DISABLE_TERMINAL", "LINES")
Golden = Callable[[str, str], None]


def _began(folder: Path) -> float:
    """When the first event of a run, or of a race's runs, was."""
    files = sorted(folder.rglob("events.jsonl"))
    return min(float(json.loads(file.read_text(encoding="utf-8").split("\n", 1)[0])["time"]) for file in files)


def lay_out(target: Path) -> Path:
    """Copy the stored runs; lists are in the order of folders' times, which no checkout keeps."""
    shutil.copytree(STORED, target)
    for folder in [*target.glob("*"), *(file.parent for file in target.glob("*/*/job.yaml"))]:
        moment = _began(folder)
        os.utime(folder, (moment, moment))
    for race in target.glob("*/race.yaml"):
        os.utime(race.parent, (_began(race.parent),) * 2)
    return target


@pytest.fixture(scope="session")
def _fonts() -> None:
    """Let Matplotlib look for fonts before any test: without a cache it starts a program for that."""
    import matplotlib.font_manager  # noqa: F401


@pytest.fixture
def work(_fonts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder of a user who has the stored runs, and nothing else."""
    from velodrome.clusters import environments

    home, here = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    here.mkdir()
    lay_out(here / "runs")
    for name in _DROPPED:
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_CACHE_HOME": str(home / "cache"), "VELODROME_CACHE": str(home / "cache"),
        "VELODROME_ENVIRONMENTS": str(home / "environments"), "COLUMNS": str(WIDTH), "TERM": "dumb", "TZ": "UTC",
    }.items():
        monkeypatch.setenv(name, value)
    time.tzset()
    monkeypatch.chdir(here)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(environments, "run_probe", _everything)
    environments.forget()
    yield here
    environments.forget()
    monkeypatch.undo()
    time.tzset()


def _everything(python: Path, words: list[str]) -> str:
    """The answer of an interpreter that has every package: which ones are installed here must not matter."""
    asked = {kind: [word.partition("=")[2] for word in words if word.startswith(f"--{kind}=")]
             for kind in ("module", "package")}
    return json.dumps({
        "interpreter": str(python), "python": "3.11.7", "modules": asked["module"], "folders": [],
        "versions": dict.fromkeys(asked["package"], "1.2.3"),
    })


@pytest.fixture
def golden() -> Golden:
    """Compare a text with the one that is stored under a name; or store it."""

    def compare(name: str, text: str) -> None:
        file = EXPECTED / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if os.environ.get(REGENERATE):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            return
        stored = file.read_text(encoding="utf-8") if file.is_file() else ""
        if text == stored:
            return
        diff = list(difflib.unified_diff(stored.splitlines(), text.splitlines(), "stored", "now", n=2, lineterm=""))
        more = [f"… and {len(diff) - _MOST_LINES} more lines"] if len(diff) > _MOST_LINES else []
        pytest.fail("\n".join([
            f"{file.relative_to(HERE.parents[1])} differs from what is printed now:", *diff[:_MOST_LINES], *more,
            "If this is intended, `python tests/golden/regenerate.py` stores the new outputs; read their diff.",
        ]), pytrace=False)

    return compare

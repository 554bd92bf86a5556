"""What the documentation tells people to type does what it says: every sample runs, in the order of its page."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from samples import Block, blocks

from velodrome.events.lines import PREFIX
from velodrome.events.models import MODELS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
from reference_words import FOLDER

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
ALL_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in ALL_PAGES if any(block.runs for block in blocks(page))]
LIMIT = 150


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with the examples and, for pages that change it, the package's source."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return tmp_path


def _write(block: Block, folder: Path) -> None:
    assert block.file is not None
    original = ROOT / block.file
    if original.exists():
        assert original.read_text(encoding="utf-8") == block.text, f"{block.file} is not what the page shows"
    target = folder / block.file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_samples_run_as_they_are_written(page: Path, folder: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "src"),
    }
    for block in blocks(page):
        if block.file is not None:
            _write(block, folder)
        elif block.runs:
            program = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
            done = subprocess.run(
                [*program, block.text], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=LIMIT,
            )
            assert done.returncode == 0, f"{page.name}, line {block.line}:\n{block.text}\n{done.stdout}\n{done.stderr}"
    for run in folder.rglob("job.yaml"):
        _check_against_reference(run.parent)


def _check_against_reference(run: Path) -> None:
    """The reference has words for everything that a real run leaves behind and says."""
    if run.name == "examples":
        return
    known = [name.rstrip("/").replace("ROLE", "*").replace("RANK", "*") for name in FOLDER]
    for path in run.iterdir():
        assert any(fnmatch.fnmatchcase(path.name, pattern) for pattern in known), f"{path.name} is not in the reference"
    lines = [line for file in run.glob("events*.jsonl") for line in file.read_text(encoding="utf-8").splitlines()]
    # A controller that was killed may leave a line cut off.
    events = [json.loads(line.removeprefix(PREFIX)) for line in lines if line.endswith("}")]
    assert events
    for event in events:
        known = {field.alias or name for name, field in MODELS[event["kind"]].model_fields.items()}
        assert event.keys() <= known, f"{event['kind']}: {event.keys() - known} are not in the reference"

"""What the documentation tells people to type does what it says: every sample runs, in the order of its page.

README, tutorial and how-to pages run as a newcomer runs them: in an empty folder, with the package installed from its
wheel, and without the repository. Pages for contributors run beside a copy of the package's source, which they change.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from samples import ROOT, USER_PAGES, Block, blocks

from velodrome.events import PREFIX
from velodrome.events.models import MODELS
from velodrome.run.check import check_run

sys.path.insert(0, str(ROOT / "docs"))
from reference_words import FOLDER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

#: Pages whose samples every test run tries; those of the others run with `make samples`.
FIRST_PAGES = ("README",)
CONTRIBUTOR_PAGES = sorted(set((ROOT / "docs").rglob("*.md")) - set(USER_PAGES))
LIMIT = 400
SLOW_LIMIT = 1200


def _with_samples(pages: list[Path], *, slow: bool) -> list[Path]:
    return [page for page in pages if any(block.runs and (block.slow is not None) == slow for block in blocks(page))]


def _named(pages: list[Path]) -> dict[str, list]:
    """One test per page, which need not run in the process of the others."""
    return {"argvalues": [pytest.param(page, id=page.stem, marks=_marks(page)) for page in pages]}


def _marks(page: Path) -> list[pytest.MarkDecorator]:
    own = pytest.mark.xdist_group(page.stem)
    return [own] if page.stem in FIRST_PAGES else [own, pytest.mark.samples]


@pytest.mark.parametrize("page", **_named(_with_samples(USER_PAGES, slow=False)))
def test_samples_run_in_an_empty_folder_after_installing_the_package(
    page: Path, installed: Path, tmp_path: Path
) -> None:
    _run(page, tmp_path, _environment(installed), slow=False)


@pytest.mark.slow
@pytest.mark.timeout(2 * SLOW_LIMIT)
@pytest.mark.parametrize("page", **_named(_with_samples(USER_PAGES, slow=True)))
def test_samples_that_are_slow_run_with_the_others_of_their_page(page: Path, installed: Path, tmp_path: Path) -> None:
    _run(page, tmp_path, _environment(installed), slow=True)


@pytest.mark.parametrize("page", **_named(_with_samples(CONTRIBUTOR_PAGES, slow=False)))
def test_samples_for_contributors_run_beside_the_source(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    environment = {**_environment(Path(sys.executable).parent), "PYTHONPATH": str(tmp_path / "src")}
    _run(page, tmp_path, environment, slow=False)


def test_the_samples_see_the_installed_package_and_not_the_repository(installed: Path, tmp_path: Path) -> None:
    program = "import sys, velodrome; print(velodrome.__file__, *sys.path, sep='\\n')"
    done = subprocess.run(
        [installed / "python", "-c", program], cwd=tmp_path, env=_environment(installed), stdout=subprocess.PIPE,
        text=True, timeout=280, check=True,
    )
    file, *path = done.stdout.splitlines()
    assert Path(file).is_relative_to(installed.parent)
    assert str(ROOT / "src") not in path


def _environment(programs: Path) -> dict[str, str]:
    """The environment of a shell in which the programs of a folder are found first."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def _run(page: Path, folder: Path, environment: dict[str, str], *, slow: bool) -> None:
    """Run the samples of a page one after another; like a reader's shell, each begins where the last one ended."""
    shell, where = folder, folder / ".where"
    for block in blocks(page):
        if block.file is not None:
            _write(block, shell)
        elif block.runs and (slow or block.slow is None):
            program = ["python", "-c", block.text]
            if block.language == "bash":
                program = ["bash", "-euo", "pipefail", "-c", f"trap 'pwd > {where}' EXIT\n{block.text}"]
            done = subprocess.run(
                program, cwd=shell, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=LIMIT if block.slow is None else SLOW_LIMIT,
            )
            assert done.returncode == 0, f"{page.name}, line {block.line}:\n{block.text}\n{done.stdout}\n{done.stderr}"
            shell = Path(where.read_text().strip()) if where.exists() else shell
    for job in folder.rglob("runs/**/job.yaml"):
        _check_against_reference(job.parent)


def _write(block: Block, folder: Path) -> None:
    assert block.file is not None
    target = folder / block.file
    if target.exists():
        assert target.read_text(encoding="utf-8") == block.text, f"{block.file} is not what the page shows"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(block.text, encoding="utf-8")


def _check_against_reference(run: Path) -> None:
    """The reference has words for everything that a real run leaves behind and says."""
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
    checked = check_run(run)
    assert checked.status != "finished" or not checked.problems, checked.problems

"""One call of a race opens its launcher once, and parses its description and each stored result once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import velodrome as package
from synthetic_races import result, typed
from velodrome import files
from velodrome.clusters.local.launcher import LocalLauncher
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.races import runs as race_runs
from velodrome.run.store import Store

pytestmark = pytest.mark.unit
FIELDS = {"job": {"engine": "torch", "model": "dense-128", "epochs": 1}, "vary": {"strategy": ["single", "ddp"]}}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often launchers were opened, and files were read, by their name within the folder of runs."""
    found: Counter[str] = Counter()
    opened, read = LocalLauncher.__init__, files.read_bytes

    def open_launcher(self: LocalLauncher, *words: Any, **more: Any) -> None:
        found["launcher"] += 1
        opened(self, *words, **more)

    def read_bytes(path: Path | str, *words: Any, **more: Any) -> bytes:
        if Path(path).name in ("race.yaml", "result.json"):
            found["/".join(Path(path).parts[-2:])] += 1
        return read(path, *words, **more)

    monkeypatch.setattr(LocalLauncher, "__init__", open_launcher)
    monkeypatch.setattr(files, "read_bytes", read_bytes)
    return found


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the jobs that ran; each has a result that was made up."""
    names: list[str] = []

    def execute(job: Job, *, store: Store, name: str, **_: Any) -> Result:
        names.append(name)
        made = typed({**result(job.strategy, job.workers, seed=job.seed), "run": name})
        run = store.create(name, job)
        run.finish(made)
        run.close()
        return made

    monkeypatch.setattr(race_runs, "execute", execute)
    return names


@pytest.mark.parametrize("more", [{}, {"until_sure": True, "max_repeat": 3, "budget": "20m"}])
def test_a_race_of_stored_runs_opens_one_launcher_and_reads_each_file_once(
    runs: Path, counted: Counter[str], trained: list[str], more: dict[str, Any]
) -> None:
    first = package.race(**FIELDS, **more, name="first", runs=runs, warm=False)
    ran = len(trained)
    assert ran >= 2
    assert counted.pop("launcher") == 1
    assert set(counted.values()) == {1}, counted
    counted.clear()
    again = package.race(**FIELDS, **more, name="first", runs=runs, warm=False)
    assert len(trained) == ran, "everything is stored"
    assert again["rows"] == first["rows"]
    assert counted == {"launcher": 1, "first/race.yaml": 1, **{f"{name}/result.json": 1 for name in trained}}

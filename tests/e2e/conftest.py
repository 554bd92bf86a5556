"""A scene for every test that does harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from k8s_scene import kube, kube_cluster  # noqa: F401 (fixtures)
from scene import HERE, Scene
from slurm_scene import on, slurm, started  # noqa: F401 (fixtures)
from ssh_scene import hosts  # noqa: F401 (fixture)


@pytest.fixture
def scene(runs: Path, no_strays: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """One run under attack, in a folder of the user's own models; nothing may be left of it."""
    monkeypatch.chdir(HERE)
    here = Scene(runs)
    yield here
    for process in here.started:
        if process.poll() is None:
            process.kill()
        process.communicate()

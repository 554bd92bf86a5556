"""Data and jobs for tests of the TensorFlow engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from driver import Ran, run, write_data

from velodrome.job.job import Job

Train = Callable[..., Ran]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of 30 an epoch, the last with one example: fewer than there are workers."""
    return write_data(tmp_path_factory.mktemp("data") / "driven.npz", examples=91)


def job(**asked: Any) -> Job:
    usual = {"engine": "tensorflow", "dataset": "driven", "model": "keras_nets:conv", "batch_size": 30, "seed": 3,
             "epochs": 5, "optimizer": "momentum", "dtype": "float64", "start_timeout": 60}
    return Job(**(usual | asked))


@pytest.fixture(scope="session")
def make_job() -> Callable[..., Job]:
    return job


def _train(
    data: Path, folder: Path, *, resume: bool = False, good: bool = True, without: str = "", **asked: Any
) -> Ran:
    return run(job(**asked), data, folder, resume=resume, good=good, without=without)


@pytest.fixture(scope="session")
def train(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train a job to its end in real processes; equal jobs are trained once a session."""
    done: dict[str, Ran] = {}

    def call(**asked: Any) -> Ran:
        key = repr(sorted(asked.items()))
        if key not in done or "folder" in asked:
            folder = asked.pop("folder", None) or tmp_path_factory.mktemp("run")
            done[key] = partial(_train, data, folder)(**asked)
        return done[key]

    return call

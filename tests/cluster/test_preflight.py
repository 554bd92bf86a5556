"""What cannot work is refused before anything starts, with the numbers and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from velodrome.cluster import preflight
from velodrome.errors import BadRequest
from velodrome.spec.job import Job
from velodrome.spec.resolve import resolve

pytestmark = pytest.mark.unit


def check(**fields: Any) -> None:
    job = resolve(Job(**fields))
    preflight.check_job(job)
    preflight.check_here(job)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"model": "lenet5"}, ["'lenet5'", "16×16", "8×8"], id="images too small"),
        pytest.param({"model": "dense-128", "model_args": {"x": 1}}, ["--model-arg", "'dense-128'"], id="arguments"),
        pytest.param({"model": "no_such_module_here:build"}, ["no module named 'no_such_module_here'"], id="no module"),
        pytest.param({"model": "no module:build"}, ["module:function"], id="not a module's name"),
        pytest.param({"batch_size": 100_000}, ["--batch-size 100000", "1,"], id="a batch larger than the set"),
        pytest.param({"engine": "tensorflow", "strategy": "tpu"}, ["tensorflow/tpu cannot run", "a TPU"], id="a TPU"),
    ],
)
def test_a_job_that_cannot_run_is_refused(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BadRequest) as refusal:
        check(**fields)
    for word in words:
        assert word in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_more_processes_than_memory_holds_are_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_memory", lambda: 2 * 2**30)
    check(strategy="ddp", workers=2)
    with pytest.raises(BadRequest, match=r"50 torch processes need about 1\d\.\d GiB of memory, and 2\.0 GiB are free"):
        check(strategy="ddp", workers=50)


def test_a_module_in_the_current_folder_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_nets.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    check(model="my_nets:build")

"""What is sent of the user's code: the modules that a job names, what these import, or a folder, within a limit."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from velodrome.clusters.environments.hosts import pins, wheels_in
from velodrome.clusters.remote.starting import Code, code_of, modules_of
from velodrome.errors import BadRequest
from velodrome.job.job import Job

pytestmark = pytest.mark.integration  # git lists the files of a folder


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    files = {
        "nets.py": "import json\nimport numpy\nimport helper\nfrom blocks.conv import Conv\n\ndef net(s, c): ...\n",
        "helper.py": "import os\n", "unused.py": "", "blocks/__init__.py": "", "blocks/conv.py": "from . import norm\n",
        "blocks/norm.py": "import losses\n", "blocks/table.json": "{}", "losses.py": "",
        "train.py": "import losses\nimport sys\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def job(**fields: object) -> Job:
    return Job.model_validate(fields)


def test_a_module_brings_the_local_modules_that_it_imports_and_nothing_else() -> None:
    made = code_of(job(model="nets:net"))
    assert sorted(made.files) == [
        "blocks/__init__.py", "blocks/conv.py", "blocks/norm.py", "blocks/table.json", "helper.py", "losses.py",
        "nets.py",
    ]


def test_a_script_brings_the_modules_beside_it() -> None:
    assert sorted(code_of(job(script="train.py")).files) == ["losses.py", "train.py"]
    with pytest.raises(BadRequest, match=r"--script '../train.py' does not lie below the current folder"):
        code_of(job(script="../train.py"))


def test_a_job_of_the_zoo_sends_nothing() -> None:
    assert code_of(job()).files == {}
    assert modules_of(job(model="nets:net", task="losses:Task", dataset="helper:rows")) == ["nets", "losses", "helper"]


def test_a_folder_is_sent_without_what_git_ignores(project: Path) -> None:
    (project / ".gitignore").write_text("*.bin\nruns/\n!keep.bin\n")
    for name in ("big.bin", "keep.bin", "runs/a.txt"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("x")
    sent = code_of(job(), str(project)).files
    assert "keep.bin" in sent
    assert "nets.py" in sent
    assert not {"big.bin", "runs/a.txt"} & set(sent)


def test_a_package_is_sent_without_what_the_project_ignores_also_outside_of_git(project: Path) -> None:
    (project / ".gitignore").write_text("*.bin\n/blocks/cache/\n**/old.py\n")
    (project / "blocks" / ".gitignore").write_text("!keep.bin\n")
    (project / "blocks" / "deep").mkdir()
    (project / "blocks" / "deep" / ".gitignore").write_text("notes.txt\n")
    (project / "blocks" / "cache").mkdir()
    for name in ("big.bin", "keep.bin", "cache/a.py", "deep/notes.txt", "deep/a.py", "old.py", "notes.txt"):
        (project / "blocks" / name).write_text("")
    names = {name.removeprefix("blocks/") for name in code_of(job(model="blocks.conv:net")).files}
    assert names >= {"keep.bin", "deep/a.py", "notes.txt", "conv.py"}
    assert not names & {"big.bin", "cache/a.py", "deep/notes.txt", "old.py"}


@pytest.mark.parametrize("in_git", [True, False])
def test_a_package_that_is_ignored_as_a_whole_is_sent_because_the_job_names_it(project: Path, in_git: bool) -> None:
    if in_git:
        subprocess.run(["git", "init", "-q", "."], check=True)
    (project / ".gitignore").write_text("blocks/*\n")
    assert {"blocks/__init__.py", "blocks/conv.py"} <= set(code_of(job(model="blocks.conv:net")).files)
    assert "conv.py" in code_of(job(), str(project / "blocks")).files


def test_a_module_in_another_encoding_brings_what_it_imports(project: Path) -> None:
    (project / "nets.py").write_bytes("# -*- coding: latin-1 -*-\nimport helper  # gr\u00fcn\n".encode("latin-1"))
    assert sorted(code_of(job(model="nets:net")).files) == ["helper.py", "nets.py"]


def test_the_same_files_are_the_same_bytes_and_others_are_not(project: Path) -> None:
    first = code_of(job(model="nets:net"))
    (project / "nets.py").touch()
    again = code_of(job(model="nets:net"))
    assert first.checksum == again.checksum
    with tarfile.open(fileobj=BytesIO(first.archive)) as archive:
        assert "blocks/conv.py" in archive.getnames()
    (project / "helper.py").write_text("changed = True\n")
    assert code_of(job(model="nets:net")).checksum != first.checksum


def test_too_much_is_refused_with_the_largest_files(project: Path) -> None:
    (project / "blocks" / "weights.dat").write_bytes(bytes(3 << 20))
    with pytest.raises(BadRequest, match=r"the 1 MiB of code_limit; the largest files are blocks/weights.dat"):
        code_of(job(model="nets:net"), limit=1)


def test_the_listing_has_names_and_sizes(project: Path) -> None:
    listed = Code({"helper.py": project / "helper.py"}).listing()
    assert listed == [{"name": "helper.py", "bytes": 10}]


def test_environments_get_the_versions_of_this_machine_with_all_that_they_require() -> None:
    import numpy

    found = pins([])
    assert found["numpy"] == numpy.__version__
    assert {"pydantic", "pydantic-core", "py-spy"} <= set(found)
    assert "torch" not in found
    assert "torch" in pins(["torch"])


def test_a_wheelhouse_that_lacks_a_wheel_is_refused_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "numpy-2.0.0-py3-none-any.whl").write_bytes(b"")
    assert [path.name for path in wheels_in(house, {"numpy": "2.0.0"})] == ["numpy-2.0.0-py3-none-any.whl"]
    missing = r"has no wheel for psutil==7.0.0 and Python 3\.\d+: fetch them with `pip download"
    with pytest.raises(BadRequest, match=missing):
        wheels_in(house, {"numpy": "2.0.0", "psutil": "7.0.0"})
    with pytest.raises(BadRequest, match="is not a folder"):
        wheels_in(tmp_path / "nowhere", {})


def test_all_wheels_for_this_python_are_sent_and_none_for_another(tmp_path: Path) -> None:
    own, other = f"cp3{sys.version_info.minor}", f"cp3{sys.version_info.minor + 1}"
    names = [
        f"numpy-2.0.0-{own}-{own}-manylinux_2_17_aarch64.whl", f"numpy-2.0.0-{own}-{own}-manylinux_2_17_x86_64.whl",
        f"numpy-2.0.0-{other}-{other}-manylinux_2_17_x86_64.whl", "numpy-1.9.0-py3-none-any.whl", "numpy.whl",
        "py_spy-0.4.0-py2.py3-none-manylinux_2_5_x86_64.whl", "psutil-7.0.0-cp36-abi3-manylinux2014_x86_64.whl",
    ]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    found = wheels_in(tmp_path, {"numpy": "2.0.0", "py-spy": "0.4.0", "psutil": "7.0.0"})
    assert sorted(path.name for path in found) == sorted([*names[:2], *names[5:]])
    for name in names[:2]:
        (tmp_path / name).unlink()
    with pytest.raises(BadRequest, match=r"has no wheel for numpy==2.0.0 and Python 3"):
        wheels_in(tmp_path, {"numpy": "2.0.0"})


def test_modules_that_import_one_another_in_a_long_chain_are_all_sent(project: Path) -> None:
    for number in range(1_500):
        (project / f"link{number}.py").write_text(f"import link{number + 1}\n")
    assert len(code_of(job(model="link0:net")).files) == 1_500


def test_source_that_cannot_be_parsed_or_is_far_too_large_is_sent_as_it_is(project: Path) -> None:
    (project / "deep.py").write_text(f"x = {'(' * 5_000}1{')' * 5_000}\nimport losses\n")
    (project / "tree.py").write_text(f"x = {'-' * 100_000}1\nimport losses\n")
    (project / "large.py").write_text("x = 1\n" * (2 << 20) + "import losses\n")
    for name in ("deep", "tree", "large"):
        assert sorted(code_of(job(model=f"{name}:net")).files) == [f"{name}.py"]


@pytest.mark.parametrize(("most", "why"), [("_MOST_FILES", "has more than 3 files"), ("_DEEPEST", "3 folders deep")])
def test_a_folder_that_is_no_code_by_its_size_is_refused(project: Path, monkeypatch, most, why) -> None:
    monkeypatch.setattr(f"velodrome.clusters.remote.starting.{most}", 3)
    (project / "a/b/c/d/e").mkdir(parents=True)
    (project / "a/b/c/d/e/x.py").write_text("")
    with pytest.raises(BadRequest, match=why):
        code_of(job(), str(project))


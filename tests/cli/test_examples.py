"""`velodrome examples`: the files that the documentation uses come with the package, and a user's changes are kept."""

from __future__ import annotations

from pathlib import Path

import yaml

import velodrome as api
from velodrome.job.job import Job
from velodrome.job.race import Race


def test_the_examples_are_listed_with_a_sentence_each(velodrome) -> None:
    listed = velodrome("examples", "list").out
    for example in velodrome("examples", "list", "--json").json():
        assert f"{example['name']} " in listed
        assert example["about"] in listed
        assert len(example["about"]) > 20


def test_copies_are_the_examples_and_a_second_copy_changes_nothing(velodrome, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "examples"
    done = velodrome("examples", "copy", folder, "--json")
    assert done.code == 0
    written = [Path(path) for path in done.json()["files"]]
    assert sorted(folder.iterdir()) == sorted(written)
    assert [path.name for path in written] == [example["name"] for example in api.examples.list()]
    assert velodrome("examples", "copy", folder).code == 0


def test_a_file_that_the_user_changed_is_named_and_kept_unless_forced(velodrome, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("mine: true\n")
    refused = velodrome("examples", "copy", tmp_path)
    assert refused.code == 2
    assert "job.yaml" in refused.err
    assert "--force" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"], "a refused copy writes nothing"
    assert job.read_text() == "mine: true\n"
    assert velodrome("examples", "copy", tmp_path, "--force").code == 0
    assert "mine" not in job.read_text()


def test_a_file_in_place_of_the_folder_is_refused(velodrome, tmp_path: Path) -> None:
    (tmp_path / "examples").write_text("")
    refused = velodrome("examples", "copy", tmp_path / "examples")
    assert refused.code == 2
    assert "is a file, not a folder" in refused.err


def test_every_yaml_example_is_a_valid_job_or_race(tmp_path: Path) -> None:
    api.examples.copy(tmp_path)
    for path in tmp_path.glob("*.yaml"):
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
        (Race if "vary" in fields else Job).model_validate(fields)

"""The study commands as a user types them; one study really runs at its smallest scale."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
from pictures import write_folders

from velodrome.job.names import parse


@pytest.mark.unit
def test_studies_are_listed_and_shown_without_fetching_anything(velodrome, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VELODROME_DATA_MIRROR", raising=False)
    listed = velodrome("study", "list", "--json").json()
    assert len({study["name"] for study in listed}) == 5
    assert "kouskouras-2022" in velodrome("study", "list").out
    told = velodrome("study", "show", "kouskouras-2022", "--json").json()
    assert told["configurations"][0]["published"]["accuracy"] == 0.9804
    shown = velodrome("study", "show", "aws-2023", "--scale", "small").out
    assert "velodrome data prepare fashion-products" in shown
    shown = velodrome("study", "show", "jaeger-2018").out
    assert "Published finding: MXNet has the higher throughput, except for the CNN at batch 128" in shown
    assert not (tmp_path / "cache").exists()


@pytest.mark.unit
def test_where_every_setting_comes_from_is_shown_with_all_notes(velodrome) -> None:
    shown = velodrome("study", "show", "fruits-horovod").out
    assert "Published: engine horovod; framework tensorflow (slide Idea: TensorFlow and Horovod)" in shown
    assert "Ours: batch_size 32 (the slides do not state the batch)" in shown
    assert "Note: Horovod ran over MPI there" in shown
    shown = velodrome("study", "show", "kouskouras-2022").out
    assert "Assumed: optimizer adam; learning_rate 0.001 (the thesis names neither" in shown
    assert ("section 5.1.4a, tables 1, 14 and 13, images 19–21; over time CPU % 2.0 to 12.7, memory GB 12.00 to 15.70, "
            "inbound MB/s 0.5 to 163.5; train accuracy 0.8721 to 0.9982 over 25 epochs") in shown


@pytest.mark.unit
def test_a_study_of_ones_own_is_written_shown_and_planned(velodrome, tmp_path: Path, runs: Path) -> None:
    file = tmp_path / "mine.yaml"
    done = velodrome("study", "new", file)
    assert (done.code, f"velodrome study run {file}" in done.out) == (0, True)
    assert velodrome("study", "new", file).code == 2
    told = velodrome("study", "show", file, "--json").json()
    assert (told["study"], len(told["claims"])) == ("mine", 2)
    assert told["configurations"][0]["settings"]["workers"]["origin"] == "published"
    planned = velodrome("study", "run", file, "--dry-run", "--runs", runs, "--json").json()
    assert planned["race"] == "mine-smoke"
    file.write_text(file.read_text().replace("is: more}", "is: mor}"))
    refused = velodrome("study", "run", file, "--runs", runs)
    assert (refused.code, "mine.yaml, line 55: claims.0.checks.0.is: must be" in refused.err) == (2, True)


@pytest.mark.unit
def test_a_study_file_runs_no_code_from_elsewhere(velodrome, tmp_path: Path, runs: Path, monkeypatch) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "else").mkdir()
    file = tmp_path / "there" / "mine.yaml"
    velodrome("study", "new", file)
    file.write_text(file.read_text().replace("model: dense-128", "model: 'elsewhere_net:make'"))
    (tmp_path / "else" / "elsewhere_net.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "else"))
    refused = velodrome("study", "run", file, "--runs", runs)
    assert refused.code == 2
    assert "names code that lies neither beside it nor in the current folder" in refused.err


@pytest.mark.unit
@pytest.mark.parametrize(("words", "shown"), [
    (("nobody",), "'nobody'"), (("zipperle-2018", "--scale", "huge"), "'huge'"),
    (("zipperle-2018", "--data-url", "hdfs://h:1/x"), "did not read from stored shards"),
    (("zipperle-2018", "--naming", "odd"), "odd"),
])
def test_what_cannot_be_is_refused(velodrome, runs: Path, words, shown: str) -> None:
    done = velodrome("study", "run", *words, "--runs", runs)
    assert done.code == 2
    assert shown in done.err
    assert not runs.exists()


@pytest.mark.unit
def test_a_study_whose_data_is_missing_says_how_to_get_it_and_runs_on_other_data(
    velodrome, runs: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VELODROME_DATA_MIRROR", raising=False)
    done = velodrome("study", "run", "aws-2023", "--runs", runs)
    assert done.code == 1
    assert "put styles.csv and images/ into" in done.err
    assert "nothing of aws-2023 can run here yet" in done.err
    done = velodrome("study", "run", "aws-2023", "--dataset", "fashion-mnist", "--dry-run", "--runs", runs, "--json")
    assert done.code == 0
    names = [word for line in done.err.splitlines() for word in line.split() if word.startswith(("SGL", "MWM", "PSS"))]
    assert {parse(name).label for name in names} == {"fashionMnist"}


@pytest.mark.unit
def test_own_data_with_a_broken_photograph_takes_part_when_asked_to_skip_it(
    velodrome, runs: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    folder = write_folders(tmp_path / "photos", each=80)
    (folder / "ant" / "bad.png").write_bytes(b"")
    words = ["study", "run", "aws-2023", "--dataset", f"path:{folder}?size=16x16", "--runs", runs]
    refused = velodrome(*words)
    assert (refused.code, "give --bad-data skip" in refused.err) == (1, True)
    planned = velodrome(*words, "--dry-run")
    assert (planned.code, planned.err) == (refused.code, refused.err)
    assert velodrome(*words, "--bad-data", "odd").code == 2
    told = velodrome(*words, "--bad-data", "skip", "--dry-run", "--json").json()
    assert not told["missing"]
    assert all("bad_data skip" in row["differs"] for row in told["configurations"])


@pytest.mark.unit
@pytest.mark.parametrize("words", [
    ("study", "run", "zipperle-2018", "--name", "taken"), ("race", "--dataset", "digits", "--name", "taken"),
])
def test_a_dry_run_refuses_the_name_of_another_race_as_the_run_does(velodrome, runs: Path, words) -> None:
    (runs / "taken").mkdir(parents=True)
    (runs / "taken" / "race.yaml").write_text("job: {dataset: kmnist}\n")
    done = velodrome(*words, "--runs", runs, "--dry-run")
    assert done.code == 2
    assert "holds another race; choose another name" in done.err


@pytest.mark.unit
def test_a_race_is_refused_for_what_is_wrong_with_its_data_before_its_first_job(
    velodrome, runs: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    folder = write_folders(tmp_path / "photos", each=80)
    (folder / "ant" / "bad.png").write_bytes(b"")
    words = ("race", "--dataset", f"path:{folder}", "--vary", "batch-size=16,32", "--runs", runs)
    for more in ((), ("--dry-run",)):
        done = velodrome(*words, *more)
        assert done.code == 2
        assert "images that cannot be read: 1 (ant/bad.png: empty file)" in done.err
        assert not runs.exists()
    assert velodrome(*words, "--dry-run", "--bad-data", "skip").code == 0


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_study_runs_at_its_smallest_scale_and_prints_ours_beside_theirs(velodrome, runs, no_strays, idle) -> None:
    done = velodrome("study", "run", "zipperle-2018", "--scale", "smoke", "--runs", runs)
    assert done.code == 0, done.err
    assert "92.45" in done.out
    assert "steps 1000 → 30" in done.out
    assert "Machines: published 4 virtual machines with 1 core, 1 GB of memory" in done.out
    assert "(section V.A); ours one machine" in done.out
    assert "not checkable here, because our runs differ" in done.out
    assert "all jobs are done" in done.err
    assert "all jobs are done" not in done.out
    again = velodrome("study", "run", "zipperle-2018", "--scale", "smoke", "--runs", runs, "--json")
    assert "nothing to do" in again.err
    assert ": started" not in again.err
    told = again.json()
    ours = {row["configuration"].split(",")[1].split()[1]: row for row in told["configurations"]
            if row["run"] is not None and "--iterations" in row["configuration"]}
    assert ours["1+1"]["ours"]["steps_per_worker"] == 30
    assert ours["2+1"]["ours"]["steps_per_worker"] == 15
    assert all(row["ours"]["seconds"] > 0 for row in ours.values())
    assert (runs / "zipperle-2018-smoke" / "race.yaml").is_file()
    tables = runs / "tables"
    assert velodrome("report", "zipperle-2018-smoke", "--runs", runs, "--format", "csv", "--out", tables / "t.csv"
                     ).code == 0
    published = (tables / "t-published.csv").read_text()
    assert "92.45" in published
    assert "two workers with half of the iterations" in published
    for form in ("latex", "markdown", "html"):
        written = velodrome("report", "zipperle-2018-smoke", "--runs", runs, "--format", form, "--json").json()
        text = Path(written["report"]).read_text()
        assert "Published figures and ours" in text
        assert "92.45" in text
        assert "Published claims" in text

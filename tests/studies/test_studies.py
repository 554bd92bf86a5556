"""Studies: what they hold is what was published, and they fit themselves to a machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synthetic_races import result, typed
from velodrome.cli.study import comparison
from velodrome.clusters import environments, preflight
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.names import expand
from velodrome.job.race import parse_vary
from velodrome.races.folder import RaceFolder
from velodrome.studies import plan as planning
from velodrome.studies.format import SCALES, Study
from velodrome.studies.load import parse_study, read_study, scale_named, studies, study_named
from velodrome.studies.outcome import compare_figures
from velodrome.studies.plan import Choice, plan_study
from velodrome.studies.quantities import is_quantity
from velodrome.studies.record import StudyRecord, hosts_cores
from velodrome.studies.settings import other_experiment
from velodrome.studies.starter import STARTER

pytestmark = pytest.mark.unit

#: Accuracy, seconds, CPU %, memory GB and network M by strategy and batch: MNIST, Fashion-MNIST, KMNIST.
PUBLISHED = {
    ("parameter-server", 128): [(0.9804, 173.895, 8.2, 14.5, 91.4), (0.8862, 121.245, 11.8, 13.2, 65.8),
                                (0.8758, 125.57, 13.1, 14, 75)],
    ("parameter-server", 256): [(0.9838, 107.155, 9.5, 14.1, 79.5), (0.892, 89.151, 10.9, 13.1, 43.9),
                                (0.8855, 82.683, 10.8, 13.4, 51.1)],
    ("multi-worker-mirrored", 128): [(0.9804, 144.703, 9.7, 14.2, 91.4), (0.8577, 259.3, 13.5, 15, 49.5),
                                     (0.8687, 145.943, 10.2, 14, 69.9)],
    ("multi-worker-mirrored", 256): [(0.978, 85.64, 9.8, 13.8, 79.4), (0.8592, 202.254, 10.4, 14.6, 40.1),
                                     (0.8538, 75.11, 12, 13.2, 51.3)],
}


def whatever(name: str) -> None:
    """Every data set is there."""


def test_the_five_studies_are_there_at_every_scale() -> None:
    assert list(studies()) == ["aws-2023", "fruits-horovod", "jaeger-2018", "kouskouras-2022", "zipperle-2018"]
    for study in studies().values():
        assert set(study.scales) == set(SCALES)
        assert study.scales["full"].model_dump() == {"job": {}, "most": {}, "only": {}}
        for figure in study.figures:
            fitting = [c for c in study.combinations() if all(c.get(k) == v for k, v in figure.of.items())]
            assert len(fitting) == 1, f"{study.name}: {figure.of}"
            assert all(map(is_quantity, figure.values))
            assert figure.place
    with pytest.raises(BadRequest, match="'nobody-1999': choose one of aws-2023"):
        study_named("nobody-1999")
    with pytest.raises(BadRequest, match="--scale 'tiny'"):
        scale_named("tiny")


def test_kouskouras_holds_its_published_figures() -> None:
    study = study_named("kouskouras-2022")
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for figure in study.figures:
        found.setdefault((figure.of["strategy"], figure.of["batch_size"]), []).append(tuple(figure.means.values()))
    assert found == PUBLISHED
    jobs = [job for job in study.combinations() if not job.get("added")]
    assert {(job["strategy"], job["workers"], job.get("servers")) for job in jobs} == {
        ("parameter-server", 6, 2), ("multi-worker-mirrored", 9, None)
    }
    assert {(job["dataset"], job["model"]) for job in jobs} == {
        ("mnist", "dense-300-100"), ("fashion-mnist", "dense-128"), ("kmnist", "dense-128")
    }
    assert {job["epochs"] for job in jobs} == {25}


def test_zipperle_divides_a_thousand_iterations_by_its_workers() -> None:
    study = study_named("zipperle-2018")
    published = [job for job in study.combinations() if job["steps"] == 1000]
    assert [(job["workers"], job["servers"]) for job in published] == [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (2, 2)]
    assert {Path(job["script"]).name for job in study.combinations()} == {"script_servers.py"}
    for figure in study.figures:
        assert figure.values["steps_per_worker"] == 1000 // figure.of["workers"]
    assert [figure.values["seconds"] for figure in study.figures] == [92.45, 51.41, 34.25]


def test_jaeger_is_the_published_grid() -> None:
    jobs = study_named("jaeger-2018").combinations()
    # Batches, the search for a learning rate, batch 5 of MXNet, and the RNN's batches; beside them, TensorFlow with
    # Velodrome's parts.
    assert len([job for job in jobs if not job.get("added")]) == 2 * 3 * 6 + 2 * 2 * 6 + 2 + 2 * 2 * 6
    assert len([job for job in jobs if job.get("added")]) == (3 + 2) * 6
    images = [job for job in jobs if job["model"] == "lenet5"]
    assert {job["learning_rate"] for job in images if job["batch_size"] != 512} == {0.025}
    assert {job["learning_rate"] for job in images if job["batch_size"] == 512} == {0.1, 0.05, 0.025}
    assert {job["workers"] for job in images if job["batch_size"] == 5} == {1, 10}
    assert {job["workers"] for job in jobs} == {1, 2, 5, 10, 25, 50}
    text = [job for job in jobs if job["model"] == "lstm-small"]
    assert {(job["unroll"], job["learning_rate"], job["epochs"]) for job in text} == {(30, 0.05, 4)}


def test_what_is_not_there_is_told_with_the_way_out_and_the_rest_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    plan = plan_study(study_named("fruits-horovod"), "smoke", Choice(), look=whatever)
    assert list(plan.missing) == [
        f"horovod/allreduce: Python module 'horovod.{framework}' is not installed: velodrome engines install horovod "
        f"--framework {framework}" for framework in ("tensorflow", "torch")
    ]
    assert plan.race is not None
    assert {entry.job.engine for entry in expand(plan.race)} >= {"tensorflow", "torch"}
    nothing = plan_study(study_named("aws-2023"), "smoke", Choice(), look=lambda name: f"no {name} here")
    assert nothing.missing == {"no fashion-products here": 5}
    assert nothing.race is None


def test_the_table_tells_the_frameworks_of_an_engine_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    plan = plan_study(study_named("fruits-horovod"), "smoke", Choice(), look=whatever)
    table = comparison(plan, compare_figures(plan, [], 2), ours=False)
    labels = [str(cell) for cell in table.columns[0].cells if "[bold]" in str(cell)]
    assert [label.partition("[/bold]")[0] for label in labels] == [
        "[bold]horovod (tensorflow) over mpi", "[bold]horovod (tensorflow) over gloo", "[bold]horovod (torch)",
        "[bold]tensorflow", "[bold]torch",
    ]


def test_other_data_takes_the_place_of_the_published_and_is_told() -> None:
    plan = plan_study(study_named("aws-2023"), "smoke", Choice(dataset="fashion-mnist"), look=whatever)
    assert plan.race is not None
    assert plan.race.naming == "published"
    assert "dataset fashion-products → fashion-mnist" in plan.settings[0].changes
    assert all(entry.job.dataset == "fashion-mnist" for entry in expand(plan.race))


def test_stored_shards_take_the_place_of_local_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning._Fitter, "fit", lambda self, fields: fields)
    study = study_named("kouskouras-2022")
    plan = plan_study(study, "smoke", Choice(data_url="hdfs://name:9000/data/"), look=whatever)
    assert {setting.ours["dataset"] for setting in plan.settings if setting.ours} == {
        f"shards:hdfs://name:9000/data/{name}" for name in ("mnist", "fashion-mnist", "kmnist")
    }
    assert plan.data == "data is read from shards at hdfs://name:9000/data/"
    assert "not from HDFS as published" in str(plan_study(study, "smoke", Choice(), look=whatever).data)


def test_fifty_workers_become_what_fits_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "cores", lambda: 2)
    monkeypatch.setattr(preflight, "available_memory", lambda: 8 * 2**30)
    plan = plan_study(study_named("jaeger-2018"), "full", Choice(), look=whatever)
    mine = [s for s in plan.settings if s.published["engine"] == "tensorflow" and s.published["model"] == "lenet5"
            and s.published["learning_rate"] == 0.025]
    ours = {s.published["workers"]: s.ours["workers"] for s in mine if s.ours}
    assert ours[1] == 1
    assert ours[5] == 5
    assert 5 <= ours[25] == ours[50] <= 16
    assert any("workers 50 → 16 (2 cores" in line for line in plan.reductions)
    assert any("GiB of memory would be needed, but only 8.0 GiB are free" in line for line in plan.reductions)
    # 25 and 50 are one run of ours, and the race runs it once.
    assert plan.race is not None
    names = [entry.name for entry in expand(plan.race)]
    assert len(names) == len(set(names)) == len(plan.jobs)


class Elsewhere:
    """A launcher of other machines, which takes jobs of up to 25 workers."""

    name = "elsewhere"

    def __init__(self) -> None:
        self.checked: list[int] = []

    def check(self, job: Job) -> None:
        self.checked.append(job.workers)
        if job.workers > 25:
            raise BadRequest("the hosts have room for 25 workers")

    def check_faults(self, job: Job) -> None:
        assert not job.faults


def test_a_study_on_other_machines_is_not_fitted_to_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "cores", lambda: 1)
    monkeypatch.setattr(preflight, "available_memory", lambda: 2**20)
    monkeypatch.setattr(environments, "missing", lambda engine, strategy: ["nothing is installed here"])
    launcher = Elsewhere()
    plan = plan_study(study_named("jaeger-2018"), "full", Choice(), look=whatever,
                      elsewhere=launcher)  # type: ignore[arg-type]
    mine = [s for s in plan.settings if s.published["engine"] == "tensorflow" and s.published["model"] == "lenet5"]
    assert {s.published["workers"]: s.ours and s.ours["workers"] for s in mine} == {
        **{s.published["workers"]: s.published["workers"] for s in mine}, 50: None}
    assert not plan.reductions
    assert "the hosts have room for 25 workers" in plan.missing
    assert 50 in launcher.checked


def test_a_study_names_the_machines_that_it_runs_on(velodrome: Any, runs: Path) -> None:
    from velodrome.clusters.ssh import SshOptions
    from velodrome.clusters.ssh.launcher import SshLauncher
    from velodrome.studies.run import _site

    words = ["study", "run", "zipperle-2018", "--dry-run", "--json", "--runs", runs]
    told = velodrome(*words, "--on", "emulated:nodes=9").json()
    assert told["machines"]["ours"].startswith("9 emulated hosts on one machine with ")
    assert velodrome(*words).json()["machines"]["ours"].startswith("one machine with ")
    launcher = SshLauncher(SshOptions(hosts=["a", "b"]))
    launcher.links = {host: SimpleNamespace(facts={"cores": 4}) for host in "ab"}  # type: ignore[dict-item]
    assert _site(launcher, "lab", here=False) == planning.Site("2 hosts of --on lab with 8 cores", 8)
    recorded = result(cluster={"hosts": {"a": {"cores": 4}, "b": {"cores": 2}}})
    assert hosts_cores(map(typed, (recorded, result()))) == 6


def test_a_study_goes_on_when_missing_data_or_memory_has_come(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, folder = study_named("jaeger-2018"), RaceFolder(runs, "again")
    monkeypatch.setattr(planning, "cores", lambda: 8)

    def begin(memory: int, *absent: str) -> dict[str, Job]:
        monkeypatch.setattr(preflight, "available_memory", lambda: memory)
        written = folder.written()
        plan = plan_study(study, "full", Choice(), look=lambda name: f"no {name}" if name in absent else None,
                          kept=written.fitted if written else None)
        assert plan.race is not None
        folder.begin(plan.race, grown=True)
        told.append(plan.reductions)
        return {entry.name: entry.job for entry in expand(plan.race)}

    told: list[Sequence[str]] = []
    first = begin(8 * 2**30, "ptb")
    assert all(name.startswith("fashion-mnist-lenet5-") for name in first)
    most = max(job.workers for job in first.values())
    assert most < 50
    for memory in (2**50, 2**30):
        again = begin(memory)
        assert first.items() <= again.items()
        assert any(f"workers 50 → {most} (as it ran here before)" in line for line in told[-1])
    assert {job.dataset for job in again.values()} == {"fashion-mnist", "ptb"}


def test_only_the_cores_that_this_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    monkeypatch.setattr(preflight, "available_memory", lambda: 2**50)
    plan = plan_study(study_named("jaeger-2018"), "full", Choice(), look=whatever)
    assert any("workers 50 → 8 (1 cores" in line for line in plan.reductions)


def test_what_becomes_of_bad_data_reaches_every_job() -> None:
    plan = plan_study(study_named("aws-2023"), "smoke", Choice("fashion-mnist", bad_data="skip"), look=whatever)
    assert plan.race is not None
    assert {entry.job.bad_data for entry in expand(plan.race)} == {"skip"}
    usual = plan_study(study_named("aws-2023"), "smoke", Choice("fashion-mnist"), look=whatever)
    assert usual.race is not None
    assert {entry.job.bad_data for entry in expand(usual.race)} == {"fail"}


def test_repetitions_and_scale_reach_the_race() -> None:
    plan = plan_study(study_named("zipperle-2018"), "smoke", Choice(repeat=3), look=whatever)
    assert plan.race is not None
    entries = expand(plan.race)
    assert len(entries) == 3 * 4
    assert {entry.job.steps for entry in entries} == {30}


def test_every_setting_of_the_five_studies_is_published_assumed_or_ours_with_a_reason() -> None:
    for study in studies().values():
        for configuration in study.combinations():
            for each in study.provenance(configuration):
                assert each.why, f"{study.name}: {each.field} of {configuration}"
            if configuration.get("added"):
                assert {each.origin for each in study.provenance(configuration)} == {"ours"}


def origins(study: Study, **fields: Any) -> dict[str, str]:
    configuration = next(each for each in study.combinations() if all(each.get(k) == v for k, v in fields.items()))
    return {each.field: each.origin for each in study.provenance(configuration)}


def test_fruits_were_published_with_tensorflow_and_without_epochs_batch_or_workers() -> None:
    """Slides Idea, Distributed training and Results."""
    study = study_named("fruits-horovod")
    assert "SageMaker" in study.machines
    published = origins(study, engine="horovod", framework="tensorflow")
    assert (published["engine"], published["framework"], published["dataset"]) == ("published",) * 3
    assert [published[name] for name in ("epochs", "batch_size", "workers", "model")] == ["ours"] * 4
    assert published["collectives"] == "published"
    assert [figure.of for figure in study.figures] == [
        {"engine": "horovod", "framework": "tensorflow", "collectives": "mpi"}]
    assert all(each.get("added") for each in study.combinations()
               if (each.get("framework"), each.get("collectives")) != ("tensorflow", "mpi"))


def test_of_the_aws_study_only_one_job_is_known() -> None:
    """README, section Testergebnisse: MWM001-33000d-artType-2i-128b-m5-4xlarge-10e-230713-102652."""
    study = study_named("aws-2023")
    sized = ("workers", "batch_size", "epochs")
    for configuration in study.combinations():
        known = (configuration["strategy"], *(configuration[name] for name in sized)) == (
            "multi-worker-mirrored", 2, 128, 10)
        told = {each.field: each.origin for each in study.provenance(configuration)}
        assert {told[name] for name in sized} == {"published" if known else "ours"}
    assert study.measures[:3] == ["train_accuracy", "validation_accuracy", "accuracy"]


def test_zipperle_moved_two_numbers_and_was_timed_without_start_up() -> None:
    """Sections V.A, V.C.4 and VI, and the author's trainer.py, which pauses for 0.1 s."""
    study = study_named("zipperle-2018")
    assert "1 core, 1 GB" in study.machines
    told = origins(study, workers=2, servers=1)
    assert (told["steps"], told["workers"]) == ("published", "published")
    assert told["script_args"] == "published"
    assert all("--pause=0.1" in job["script_args"] for job in study.combinations())
    assert not any("--asynchronous" in job["script_args"] for job in study.combinations())
    assert origins(study, workers=2, servers=1, steps=333)["steps"] == "ours"
    assert not any("total" in figure.values for figure in study.figures)
    assert any("captions" in note and "parameter servers" in note for note in study.notes)
    assert any("at least 100 s, and not the published 92.45 s" in note for note in study.notes)


def test_kouskouras_resources_are_of_nine_machines_of_four_cores_and_four_gigabytes() -> None:
    """Section 5.1.1, tables 13 and 16, and the images that their places name."""
    study = study_named("kouskouras-2022")
    assert "4 cores and 4 GB" in study.machines
    for figure in study.figures:
        assert {"cpu", "memory", "inbound_rate"} == figure.extents.keys()
        assert figure.extents["memory"].max < 9 * 4
        assert figure.extents["memory"].min > 4
    first = study.figures[0]
    assert first.extents["inbound_rate"].model_dump() == {"min": 0.5002, "mean": 91.4, "max": 163.5}
    assert {job["sharding"] for job in study.combinations()} == {"data"}
    told = origins(study, strategy="multi-worker-mirrored")
    assert (told["sharding"], told["optimizer"], told["learning_rate"]) == ("published", "assumed", "assumed")
    assert told["batch_scope"] == "assumed"


def test_kouskouras_has_three_hundred_accuracies_per_epoch() -> None:
    """Tables 1 to 12, of which three numbers each are spelled out here."""
    study = study_named("kouskouras-2022")
    names = ("strategy", "dataset", "batch_size")
    curves = {tuple(figure.of[name] for name in names): figure.epochs["train_accuracy"] for figure in study.figures}
    assert [len(curve) for curve in curves.values()] == [25] * 12
    ends = {key: (curve[0], curve[12], curve[24]) for key, curve in curves.items()}
    server, mirrored = "parameter-server", "multi-worker-mirrored"
    assert ends == {
        (server, "mnist", 128): (0.8721, 0.9961, 0.9982), (server, "mnist", 256): (0.8079, 1.0015, 0.9996),
        (mirrored, "mnist", 128): (0.8224, 0.9921, 0.9989), (mirrored, "mnist", 256): (0.7425, 0.9828, 0.9951),
        (server, "fashion-mnist", 128): (0.7301, 0.9136, 0.9353),
        (server, "fashion-mnist", 256): (0.677, 0.8939, 0.9205),
        (mirrored, "fashion-mnist", 128): (0.7069, 0.8775, 0.8926),
        (mirrored, "fashion-mnist", 256): (0.6107, 0.859, 0.8723),
        (server, "kmnist", 128): (0.832, 0.9935, 0.9984), (server, "kmnist", 256): (0.7698, 0.9879, 0.9984),
        (mirrored, "kmnist", 128): (0.6781, 0.9428, 0.9622), (mirrored, "kmnist", 256): (0.5919, 0.9165, 0.9494),
    }


def test_jaeger_trained_whole_epochs_on_every_worker_without_clipping_and_with_a_server_on_each() -> None:
    """Equation 4.1, sections 5.2.2 and 6.1.2, listings 5.15 and 5.24."""
    study = study_named("jaeger-2018")
    assert study.source.startswith("Jäger 2018")
    assert "bachelor thesis" in study.source
    for job in study.combinations():
        assert job["servers"] == (job["workers"] if job["engine"] == "mxnet" else 1)
        assert job["sharding"] == "off"
        if job["model"] == "lenet5":
            assert job["validation"] == 0
        else:
            assert (job["clip_norm"], job["decay"]) == (None, None)


@pytest.mark.parametrize(("name", "least"), [
    ("kouskouras-2022", 18), ("jaeger-2018", 36), ("zipperle-2018", 6), ("fruits-horovod", 2), ("aws-2023", 2),
])
def test_every_study_has_its_conclusions_with_their_places(name: str, least: int) -> None:
    claims = study_named(name).claims
    assert len(claims) >= least
    assert all(claim.place and (claim.checks or claim.unchecked) for claim in claims)


@pytest.mark.parametrize("name", ["aws-2023", "fruits-horovod", "jaeger-2018", "kouskouras-2022", "zipperle-2018"])
def test_the_five_are_written_in_the_format_of_everybody(name: str) -> None:
    from importlib import resources

    file = resources.files("velodrome.studies") / f"{name}.yaml"
    assert parse_study(file.read_text(encoding="utf-8"), file.name) == study_named(name)


@pytest.mark.parametrize(("right", "wrong", "line", "told"), [
    ("is: more}", "is: mor}", 55, "must be 'more', 'less' or 'same'"),
    ("fields: [batch_size]", "fields: [batchsize]", 31, "did you mean 'batch_size'?"),
    ("of: {workers: 1}\n", "of: {workers: 7}\n", 37, "no configuration of the study has these values"),
    ("measure: accuracy", "measure: accuray", 61, "did you mean 'accuracy'"),
    ("published: section 3}", "published: section 3, ours: x}", 29, "write one of published"),
    ("place: section 4\n    checks", "plaice: section 4\n    checks", 53, "there is no such field"),
    ("epochs: 5, ", "", 14, "states every"),
    ("model: dense-128", "modell: dense-128", 14, "no field 'modell'"),
    ("model: dense-128", "model: dense-129", 14, "no model 'dense-129': did you mean 'dense-128'"),
    ("strategy: allreduce, workers: 2", "strategy: alreduce, workers: 2", 18, "no strategy 'alreduce': did you mean"),
    ("engine: torch, strategy: allreduce, workers: 1", "engine: torhc, strategy: allreduce, workers: 1", 17,
     "no engine 'torhc': did you mean 'torch'"),
    ("dataset: digits", "dataset: digitz", 14, "no dataset 'digitz': did you mean 'digits'"),
    ("dataset: digits", "dataset: nowhere:digits:small", 14, "no dataset 'nowhere:digits:small': "),
    ("{train_accuracy: [0.60", "{train_acc: [0.60", 40, "no metric 'train_acc' of an epoch: did you mean"),
    ("values: {accuracy: 0.94", "values: {train_accurac: 0.94", 39,
     "no quantity 'train_accurac': did you mean 'train_accuracy'"),
    ("measure: accuracy", "measure: train_acc@2", 61, "no quantity 'train_acc@2'"),
    ("small: {job: {epochs: 2}}", "small: {job: {epoch: 2}}", 23, "did you mean 'epochs'"),
    ("kind: compare", "kind: compares", 55, "must be one of compare, largest, level, scales, flattens, gap"),
    ("accuracy: 0.94", "accuracy: high", 39, "figures.0.values.accuracy: must be a number"),
    ("is: more}", "is: more, against: {workers: [1]}}", 55, "there is no such field"),
])
def test_what_is_wrong_with_a_study_file_is_told_with_its_line(right: str, wrong: str, line: int, told: str) -> None:
    text = STARTER.replace("NAME", "mine")
    assert right in text
    with pytest.raises(BadRequest) as error:
        parse_study(text.replace(right, wrong, 1), "mine.yaml")
    assert any(each.lstrip().startswith(f"mine.yaml, line {line}: ") and told in each
               for each in str(error.value).splitlines()), str(error.value)


def test_data_and_metrics_of_ones_own_have_any_name() -> None:
    text = STARTER.replace("NAME", "mine")
    for name in ("mydata:load", "path:photos", "shards:/data/photos", "fashion-products:season"):
        assert parse_study(text.replace("dataset: digits", f"dataset: '{name}'"), "mine.yaml").combinations()
    own = text.replace("dense-128,", "dense-128, task: 'mytask:Ranking',").replace("train_accuracy", "train_depth")
    assert parse_study(own, "mine.yaml").figures[0].epochs.keys() == {"train_depth"}


def test_a_race_keeps_its_study(tmp_path: Path) -> None:
    plan = plan_study(study_named("zipperle-2018"), "smoke", Choice(), look=whatever)
    StudyRecord.of(plan).write(tmp_path)
    record = StudyRecord.read(tmp_path)
    assert record is not None
    kept = record.plan()
    assert kept.study == plan.study
    assert [(s.published, s.ours, s.changes, s.provenance) for s in kept.settings] == [
        (s.published, s.ours, s.changes, s.provenance) for s in plan.settings]
    (tmp_path / "study.json").write_text("{")
    assert StudyRecord.read(tmp_path) is None


def test_published_names_have_the_test_group_and_the_number_within_it() -> None:
    """README, section Testergebnisse: of 201, 2 is the test group and 1 the number within the group."""
    plan = plan_study(study_named("aws-2023"), "smoke", Choice("fashion-mnist", repeat=2, test_group=2), look=whatever)
    assert plan.race is not None
    race = plan.race.model_copy(update={"stamp": "230713-102652", "machine": "m5-4xlarge"})
    names = [entry.name for entry in expand(race) if entry.job.strategy == "multi-worker-mirrored"]
    assert [name[:7] for name in names] == ["MWM201-", "MWM202-"]
    assert all(name.endswith("-fashionMnist-2i-128b-m5-4xlarge-1e-230713-102652") for name in names)
    usual = race.model_copy(update={"test_group": None})
    assert any(entry.name.startswith("MWM001-") for entry in expand(usual))
    with pytest.raises(BadRequest, match="at most 99 runs"):
        expand(race.model_copy(update={"repeat": 100}))


def test_a_study_of_frameworks_runs_them_as_they_are_and_ours_beside() -> None:
    tensorflow = [job for job in study_named("jaeger-2018").combinations() if job["engine"] == "tensorflow"]
    assert {(job.get("implementation"), job.get("added")) for job in tensorflow} == {("stock", None), (None, True)}
    plan = plan_study(study_named("jaeger-2018"), "smoke", Choice(implementation="velodrome"), look=whatever)
    ours = [setting.ours for setting in plan.settings if setting.published["engine"] == "tensorflow"]
    assert {fields and fields["implementation"] for fields in ours} == {"velodrome"}
    assert all("implementation" in (setting.ours or setting.published) for setting in plan.settings)
    # What the frameworks' own parts do is not judged by runs of Velodrome's.
    assert all(other_experiment(setting, steady=True) for setting in plan.settings
               if setting.ours and setting.published.get("implementation") == "stock")
    asked = plan_study(study_named("kouskouras-2022"), "smoke", Choice(implementation="stock"), look=whatever)
    assert {setting.ours["implementation"] for setting in asked.settings if setting.ours} == {"stock"}


def test_a_part_of_a_study_is_chosen_by_published_fields() -> None:
    study = study_named("jaeger-2018")
    only = parse_vary(["batch_size=512", "workers=1", "learning_rate=0.025", "engine=mxnet"])
    plan = plan_study(study, "full", Choice(only=only), look=whatever)
    assert [setting.label for setting in plan.settings] == [
        "fashion-mnist, mxnet/kvstore (stock) 1+1, batch 512, 8 epochs"]
    assert plan.left_out == len(study.combinations()) - 1
    with pytest.raises(BadRequest, match="--only batch_size=7: no configuration of jaeger-2018 has it; choose from"):
        plan_study(study, "full", Choice(only={"batch_size": ["7"]}), look=whatever)
    with pytest.raises(BadRequest, match="--only momentum: jaeger-2018 does not name that field"):
        plan_study(study, "full", Choice(only={"momentum": ["1"]}), look=whatever)
    with pytest.raises(BadRequest, match=r"script_servers\.py is a script, which brings its own data"):
        plan_study(study_named("zipperle-2018"), "full", Choice(dataset="mnist"), look=whatever)


def test_a_study_of_ones_own_may_run_a_script_beside_it(tmp_path: Path) -> None:
    text = ("name: mine\ntitle: t\nsource: s\nmachines: m\nraces:\n"
            "  - job: {script: train.py, engine: torch, workers: 2}\n")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(BadRequest, match=r"mine\.yaml, line 6: races\.0: script: no file '.*train\.py'"):
        read_study(tmp_path / "mine.yaml")
    (tmp_path / "train.py").write_text("")
    plan = plan_study(read_study(tmp_path / "mine.yaml"), "full", Choice(), look=whatever)
    assert plan.jobs[0]["script"] == str(tmp_path / "train.py")
    assert plan.settings[0].label == "train.py, torch 2"

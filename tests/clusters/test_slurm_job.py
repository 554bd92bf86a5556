"""Jobs of Slurm outlive commands and hiccups of its controller, and nobody starts or ends one by mistake."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_slurm import DDP, DOWN, FORGOTTEN, FakeSlurm, run_in_a_job

from velodrome.catalog.world import Member
from velodrome.clusters import living, open_attached
from velodrome.clusters.launcher import Exit
from velodrome.clusters.plan import Process
from velodrome.clusters.preflight import Admitted
from velodrome.clusters.remote.allocated import AllocatedGroup, StillQueued
from velodrome.clusters.remote.group import RemoteGroup
from velodrome.clusters.slurm import SlurmOptions, commands
from velodrome.clusters.slurm.job import SlurmJob, read_record
from velodrome.clusters.slurm.launcher import AttachedLauncher, SlurmLauncher
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.race import Entry
from velodrome.races.folder import RaceFolder
from velodrome.run import attempt, execute
from velodrome.run.store import Store

pytestmark = pytest.mark.integration
STARTED = {"token": "t", "started": 1.0, "hosts": {name: {"code": "", "python": "p"} for name in ("n1", "n2")}}


def options(**fields: Any) -> SlurmOptions:
    return SlurmOptions.model_validate(fields)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "bin").use(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def job(mail: Path, **fields: Any) -> SlurmJob:
    mail.mkdir(parents=True, exist_ok=True)
    made = SlurmJob(7, mail, "x", options(**fields))
    made.abandon()  # no thread asks beside the test
    return made


# Attach


def test_a_refused_attach_leaves_the_job_of_a_running_run_alone(fake: FakeSlurm, store: Store, tmp_path: Path) -> None:
    run, mail = run_in_a_job(store, tmp_path, **STARTED)
    (run.path / "plan.json").write_text(json.dumps({"run": "a", "processes": []}))
    with pytest.raises(BadRequest, match="run 'a' is running"):
        execute.attach("a", store=store)
    run.close()
    assert fake.calls("scancel") == []
    assert mail.is_dir()


@pytest.mark.parametrize("mail", ["/home", ".velodrome-slurm/x/..", ".velodrome-slurm/..", ".velodrome-slurm", "x"])
def test_a_record_names_no_other_folder_as_the_mail_of_its_job(tmp_path, mail):
    """It is removed with the job: a folder that somebody sent must not choose what that is."""
    (tmp_path / "slurm.json").write_text(json.dumps({"job": 7, "mail": mail, "session": Path(mail).name}))
    with pytest.raises(BadRequest, match=r"is not the mail folder of a job"):
        read_record(tmp_path)


@pytest.mark.parametrize("script", ["/home/me/other.sh", "/tmp/.velodrome-slurm/y/job.sh", "job.sh", "(null)"])
def test_a_record_that_names_another_job_does_not_lead_to_its_end(
    fake: FakeSlurm, store: Store, tmp_path: Path, script: str
) -> None:
    """Whoever sent the run may know the number of a job of its reader, and not the folder of its mail."""
    run, mail = run_in_a_job(store, tmp_path)
    run.close()
    fake.script(script)
    with pytest.raises(BadRequest, match="Slurm job 7 is not running any more"):
        execute.attach("a", store=store)
    assert fake.calls("scancel") == []
    assert mail.is_dir()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run": "a", "processes": [{}]}'])
def test_a_plan_that_cannot_be_read_is_a_sentence_and_leaves_the_job_alone(
    fake: FakeSlurm, store: Store, tmp_path: Path, content: str
) -> None:
    run, mail = run_in_a_job(store, tmp_path, **STARTED)
    run.close()
    (run.path / "plan.json").write_text(content)
    with pytest.raises(VelodromeError, match=r"run 'a' cannot be taken over: .*plan.json' cannot be read"):
        execute.attach("a", store=store)
    assert fake.calls("scancel") == []
    assert mail.is_dir()


@pytest.mark.parametrize("content", ["", "[]", "{}", "7", '{"job": "x"}', '{"job": 7, "mail": 3, "session": "x"}'])
def test_a_damaged_record_is_a_sentence_with_the_way_out(fake: FakeSlurm, tmp_path: Path, content: str) -> None:
    (tmp_path / "slurm.json").write_text(content)
    with pytest.raises(BadRequest, match=r"slurm.json' cannot be read: .* `squeue --me` shows"):
        AttachedLauncher(tmp_path)


def test_an_attached_launcher_has_the_options_of_its_cluster(fake: FakeSlurm, store: Store, tmp_path: Path) -> None:
    run, _ = run_in_a_job(store, tmp_path, options={"silence": 300.0, "partition": "gpu"})
    run.close()
    with open_attached(run.path) as launcher:
        assert launcher.options.silence == 300.0
        assert launcher.options.partition == "gpu"
        assert launcher.started is None
    assert fake.calls("scancel") == []


def test_attach_continues_with_a_job_whose_command_was_killed_before_it_started_processes(
    fake: FakeSlurm, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, mail = run_in_a_job(store, tmp_path)
    run.close()
    used: list[int] = []

    def fail(self: SlurmLauncher, job: object, notice: object) -> None:
        assert self._job is not None
        used.append(self._job.number)
        raise VelodromeError("no nodes today")

    monkeypatch.setattr(SlurmLauncher, "_nodes_for", fail)
    with pytest.raises(attempt.JobFailed, match="no nodes today"):
        execute.attach("a", store=store)
    assert used == [7]
    assert fake.calls("sbatch") == []
    assert fake.calls("scancel") == ["scancel --full --quiet 7"]  # it was taken over
    assert not mail.exists()


# A job is found again, and no second one is started beside it


def test_the_record_is_written_before_a_job_waits_in_the_queue(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = SlurmLauncher(options(shared_dir=str(tmp_path), silence=99))

    def interrupted(job: SlurmJob, seconds: float, notice: object) -> None:
        assert read_record(tmp_path).job == job.number
        raise KeyboardInterrupt

    monkeypatch.setattr(SlurmJob, "wait_until_running", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launcher.allocate(DDP, tmp_path, lambda text: None)
    record = read_record(tmp_path)
    assert (record.job, record.token, record.options.silence) == (7, None, 99)
    assert living(tmp_path) == "Slurm job 7"
    launcher.close()
    assert fake.calls("scancel")
    assert living(tmp_path) is None


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_a_run_whose_job_lives_is_not_resumed(fake: FakeSlurm, store: Store, tmp_path: Path, state: str) -> None:
    run, mail = run_in_a_job(store, tmp_path, **STARTED)
    run.close()
    fake.job(state)
    sentence = rf"run 'a' is still running as Slurm job 7: `velodrome attach a --runs {store.path}` takes it over"
    with pytest.raises(BadRequest, match=sentence):
        execute.resume("a", store=store)
    with pytest.raises(BadRequest, match="still running as Slurm job 7"):
        RaceFolder(tmp_path, store.path.name).refuse_resumed([Entry("a", DDP, 1)])
    assert mail.is_dir()


def test_whether_a_job_lives_is_not_guessed(fake: FakeSlurm, store: Store, tmp_path: Path) -> None:
    run, mail = run_in_a_job(store, tmp_path, **STARTED)
    run.close()
    fake.job(error=DOWN)
    with pytest.raises(VelodromeError, match=r"slurmctld does not answer: Unable to contact slurm controller"):
        living(run.path)
    fake.job(error=FORGOTTEN)
    assert living(run.path) is None
    fake.job(error=DOWN)
    mail.rmdir()
    assert living(run.path) is None  # without its mail no agent is left, whatever Slurm knows


def test_the_next_command_mentions_attach(
    fake: FakeSlurm, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from velodrome.cli.train import mention_interrupted

    run, _ = run_in_a_job(store, tmp_path, **STARTED)
    run.close()
    mention_interrupted(store)
    said = capsys.readouterr().err.replace("\n", "")
    assert f"is still running as Slurm job 7, and `velodrome attach a --runs {store.path}` takes it over" in said
    fake.job("TIMEOUT")
    mention_interrupted(store)
    assert "`velodrome resume a" in capsys.readouterr().err


# Slurm's controller does not answer


def test_a_hiccup_of_slurmctld_does_not_end_a_job(fake: FakeSlurm, tmp_path: Path) -> None:
    running = job(tmp_path / "mail", silence=60)
    assert running.refresh().name == "RUNNING"
    fake.job(error=DOWN)
    assert running.refresh().name == "RUNNING"
    assert running.end() is None
    assert running.unanswered is None
    fake.job(error=FORGOTTEN)
    assert running.refresh().is_over


def test_a_command_that_hangs_says_nothing_about_the_job(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers("scontrol", "exec sleep 60")
    monkeypatch.setattr(commands, "_SECONDS", 0.2)
    with pytest.raises(commands.NoAnswer, match=r"scontrol did not answer within 0.2 s"):
        commands.state_of(7)


def test_waiting_in_the_queue_ends_when_slurmctld_is_silent_for_too_long(fake: FakeSlurm, tmp_path: Path) -> None:
    waiting = job(tmp_path / "mail", silence=2)
    fake.job(error=DOWN)
    with pytest.raises(VelodromeError, match=r"Slurm job 7: slurmctld has not answered for \d s \(Unable to contact"):
        waiting.wait_until_running(60, lambda text: None)


def test_a_job_is_cancelled_as_soon_as_slurmctld_answers(fake: FakeSlurm, tmp_path: Path) -> None:
    ending = SlurmJob(7, tmp_path / "mail", "x", options())
    fake.job(error=DOWN)
    fake.answers("scancel", f"[ -s {fake.folder}/error ] && exit 1; echo CANCELLED > {fake.folder}/state")
    timer = threading.Timer(1.0, fake.job)
    timer.start()
    ending.release()
    timer.join()
    assert len(fake.calls("scancel")) > 1
    assert ending.state.name == "CANCELLED"


def test_a_lost_host_is_reported_together_with_a_silent_slurmctld(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = Process(Member("worker", 0, "n1", 20000, 0), 0, 1, {})

    class Silent(SlurmJob):
        def __init__(self) -> None:
            """No job was submitted."""

        nodes: ClassVar[list[str]] = ["n1"]
        state = commands.JobState("RUNNING")
        unanswered = "slurmctld has not answered for 121 s (connect failure)"

        def raise_if_interrupted(self, *, now: bool) -> None:
            """It cannot be known."""

    lost = Exit(None, None, "was lost: host 'n1' has not answered for 120 s")
    monkeypatch.setattr(RemoteGroup, "wait", lambda self, seconds, deliver: self._exits.setdefault(process, lost))
    group = AllocatedGroup("token", tmp_path, {}, job=Silent())  # type: ignore[arg-type]
    group.add(process)
    for _ in range(2):
        group.wait(0.1, lambda process, line: None)
    found = group.exit_of(process)
    assert found is not None
    assert found.cause == f"{lost.cause}, and {Silent.unanswered}"


# Long waits


def test_a_long_wait_says_what_it_waits_for(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("velodrome.clusters.slurm.job._NOTICE_SECONDS", 0.0)
    fake.job("PENDING")
    said: list[str] = []
    with pytest.raises(StillQueued, match=r"has waited in the queue for 1.5 s \(Resources\)"):
        job(tmp_path / "mail").wait_until_running(1.5, said.append)
    assert said == ["waiting for Slurm job 7: PENDING (Resources)"]


def test_a_wait_is_an_event_of_the_run(
    fake: FakeSlurm, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("velodrome.clusters.slurm.job._NOTICE_SECONDS", 0.0)
    fake.job("PENDING")
    run = store.create("b", DDP)
    launcher = SlurmLauncher(options(shared_dir=str(tmp_path), queue_timeout=1))
    heard: list[Any] = []
    with pytest.raises(StillQueued):
        attempt.Attempt(
            run, Admitted(DDP, launcher), lambda state, event: heard.append(event), resume=False
        )._make_plan()
    launcher.close()
    run.close()
    assert [(event.kind, event.message) for event in heard] == [
        ("wait", "waiting for Slurm job 7: PENDING (Resources)")
    ]
    assert [event.kind for event in run.events()] == ["wait"]


# Doctor


def examined(folder: Path, **fields: Any) -> list[tuple[str, str]]:
    launcher = SlurmLauncher(options(shared_dir=str(folder), **fields))
    findings = launcher.examine(DDP).findings
    launcher.close()
    return [(finding.level, finding.sentence) for finding in findings]


def test_doctor_reports_missing_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    ((level, sentence),) = examined(tmp_path)
    assert level == "error"
    assert "--on slurm needs sbatch, scancel, scontrol" in sentence


def test_doctor_reports_a_refused_submission(fake: FakeSlurm, tmp_path: Path) -> None:
    fake.answers("sbatch", "echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1")
    ((level, sentence),) = examined(tmp_path, partition="nope")
    assert level == "error"
    assert "sbatch refuses the job: invalid partition specified: nope" in sentence


def test_doctor_says_that_nodes_were_not_checked_when_the_queue_gives_none(fake: FakeSlurm, tmp_path: Path) -> None:
    fake.job("PENDING")
    ((level, sentence),) = examined(tmp_path, queue_timeout=1)
    assert level == "warning"
    assert sentence == ("the nodes were not checked: Slurm gave none within 1 s (PENDING, Resources); try again when "
                        "nodes are idle")
    assert "--time=15" in fake.calls("sbatch")[-1]
    assert fake.calls("scancel")
    assert not (tmp_path / ".velodrome-slurm").exists()


def test_preparing_nodes_is_refused_with_the_way_out(fake: FakeSlurm, tmp_path: Path) -> None:
    from velodrome.api import clusters

    with pytest.raises(BadRequest, match="an environment on the shared file system, and set python"):
        clusters.prepare("slurm", engines=["none"])


def test_a_race_without_sinfo_has_one_launcher(fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake.folder / "sinfo").unlink()
    monkeypatch.setenv("PATH", str(fake.folder))
    launcher = SlurmLauncher()
    assert launcher.divide([DDP]) == [launcher]

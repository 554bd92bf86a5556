"""What is asked of Slurm: nodes, steps and options; and what its answers mean."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from velodrome.catalog.world import Member
from velodrome.clusters import target_of
from velodrome.clusters.launcher import AllocationEnded, Exit
from velodrome.clusters.plan import Placement, Process
from velodrome.clusters.remote.allocated import AllocatedGroup
from velodrome.clusters.remote.channels import FileChannel
from velodrome.clusters.remote.group import RemoteGroup
from velodrome.clusters.slurm import SlurmOptions, commands
from velodrome.clusters.slurm.commands import Step, agent_script, batch_script, nodes_of, sbatch_options, steps_of
from velodrome.clusters.slurm.job import SlurmJob
from velodrome.clusters.slurm.launcher import AttachedLauncher
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

pytestmark = pytest.mark.unit

SERVERS = resolve(Job(engine="tensorflow", strategy="parameter-server", workers=3, servers=2))
DDP = resolve(Job(engine="torch", strategy="ddp", workers=4))


def options(**fields: Any) -> SlurmOptions:
    return SlurmOptions.model_validate(fields)


def test_options_are_read_from_the_command_line() -> None:
    target = target_of("slurm:partition=gpu,account=lab,time=2:00:00,nodes=4,gpus=a100:2,cpus=8")
    found = target.options.model_dump()
    assert found["partition"] == "gpu"
    assert found["time"] == "2:00:00"
    assert (found["nodes"], found["cpus"], found["gpus"]) == (4, 8, "a100:2")
    assert target_of("slurm").options == options()


@pytest.mark.parametrize(
    ("text", "part"),
    [("slurm:partion=x", "'partion=x' is none of partition, account"), ("slurm:main", "'main' is none of"),
     ("slurm:nodes=0", "nodes"), ("slurm:nodes=many", "nodes 'many'"),
     ("slurm:cpus=2,cpus=3", "'cpus' is given twice"), ("slurm:time=", "'time=' has no value")],
)
def test_options_that_are_none_are_refused(text: str, part: str) -> None:
    with pytest.raises(BadRequest) as refused:
        target_of(text)
    assert part in str(refused.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [(30, "30"), (4320, "4320"), ("30", "30"), ("30:00", "30:00"), ("2:00:00", "2:00:00"), ("1-12", "1-12"),
     ("1-12:30", "1-12:30"), ("1-12:30:15", "1-12:30:15"), ("UNLIMITED", "UNLIMITED")],
)
def test_a_number_is_a_time_in_minutes_and_a_text_is_what_sbatch_takes(given: int | str, text: str) -> None:
    assert options(time=given).time == text
    assert f"--time={text}" in sbatch_options(options(time=given), 1, "x", Path("/l"))


def test_a_number_of_gpus_is_text_for_sbatch() -> None:
    assert options(gpus=2).gpus == "2"


@pytest.mark.parametrize(
    ("fields", "job", "nodes"),
    [({}, DDP, 4), ({}, SERVERS, 6), ({"nodes": 2}, SERVERS, 2), ({"placement": "pack", "slots": 3}, DDP, 2),
     ({"placement": "pack", "cpus": 4}, DDP, 1)],
)
def test_a_job_gets_a_node_for_each_process_by_default(fields: dict[str, Any], job: Job, nodes: int) -> None:
    assert nodes_of(job, options(**fields)) == nodes


def test_each_group_of_roles_is_one_step() -> None:
    spread = options().policy
    assert steps_of(DDP, 4, spread) == [Step("worker", 0, 4)]
    assert steps_of(SERVERS, 6, spread) == [Step("server", 0, 2), Step("worker", 2, 3), Step("chief", 5, 1)]
    assert steps_of(SERVERS, 8, spread)[-1] == Step("chief", 5, 1)  # two nodes stay empty
    together = steps_of(SERVERS, 1, spread)
    assert together == [Step("server+worker+chief", 0, 1)]
    with pytest.raises(BadRequest, match="not known before it starts"):
        steps_of(DDP, 4, Placement("spread", pins={"worker": "n1"}))


def test_sbatch_is_asked_for_what_the_cluster_says() -> None:
    wanted = options(partition="gpu", account="lab", qos="high", time="30", cpus=8, gpus="2", memory="16G",
                     sbatch=["--constraint=ib"])
    assert sbatch_options(wanted, 3, "velodrome-x", Path("/l")) == [
        "--job-name=velodrome-x", "--nodes=3", "--ntasks-per-node=1", "--partition=gpu", "--account=lab", "--qos=high",
        "--time=30", "--cpus-per-task=8", "--gpus-per-node=2", "--mem=16G", "--output=/l", "--open-mode=append",
        "--no-requeue", "--constraint=ib",
    ]
    with pytest.raises(ValueError, match="'rm -rf' is not an option"):
        options(sbatch=["rm -rf"])


def test_the_script_has_one_srun_for_each_step(tmp_path: Path) -> None:
    mail = tmp_path / "a folder's mail"
    wanted = options(cpus=2, container="docker://x/y:1", shared_dir=str(tmp_path), srun=["--mpi=none"])
    script = batch_script([Step("server", 0, 1), Step("worker", 1, 2)], wanted, mail)
    lines = script.splitlines()
    _, second = [line for line in lines if line.startswith("srun")]
    assert "--job-name=worker --relative=1 --nodes=2 --ntasks=2 --ntasks-per-node=1" in second
    assert f"--container-image=docker://x/y:1 --container-mounts={tmp_path}:{tmp_path} --mpi=none" in second
    assert lines[-2:] == ["wait $steps", "kill $beating"]
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text("{}")
    assert f"--container={bundle} " in batch_script([Step("worker", 0, 1)], options(container=str(bundle)), mail)
    agent = agent_script(wanted, mail, "/py", "abc")
    assert '"abc$node"' in agent
    assert '"$node"/in' in agent
    assert f" 120 {wanted.root} " in agent.replace("'", "")
    assert agent.count("/heartbeat") == script.count("/heartbeat") == 1
    assert "\nexec /py -I -S -c " in agent


def state(text: str) -> commands.JobState:
    return commands.parse_state(f"JobId=7 JobName=x JobState={text} Dependency=(null) NodeList=n[1-2] BatchHost=n1")


@pytest.mark.parametrize(
    ("text", "waiting", "over", "interrupted", "words"),
    [
        ("PENDING Reason=Resources", True, False, False, "PENDING"),
        ("RUNNING Reason=None", False, False, False, "RUNNING"),
        ("COMPLETING Reason=None", False, False, False, "COMPLETING"),
        ("TIMEOUT Reason=TimeLimit", False, True, True, "its time limit was reached (TIMEOUT)"),
        ("PREEMPTED Reason=None", False, True, True, "it was pre-empted by another job (PREEMPTED)"),
        ("CANCELLED Reason=None", False, True, True, "it was cancelled (CANCELLED)"),
        ("NODE_FAIL Reason=NodeDown", False, True, False, "a node failed (NODE_FAIL)"),
        ("COMPLETED Reason=None", False, True, False, "COMPLETED"),
    ],
)
def test_states_are_read(text: str, waiting: bool, over: bool, interrupted: bool, words: str) -> None:
    found = state(text)
    assert (found.is_waiting, found.is_over, found.was_interrupted, str(found)) == (waiting, over, interrupted, words)
    assert found.nodes == "n[1-2]"


def test_without_slurm_the_way_out_is_a_login_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadRequest, match="--on slurm needs sbatch, scancel, scontrol: run this command on a"):
        commands.require_tools()


def test_a_run_without_a_job_cannot_be_attached_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "missing_tools", list)
    with pytest.raises(BadRequest, match="has no job of Slurm to attach to"):
        AttachedLauncher(tmp_path)


def test_mail_is_read_to_its_end_after_the_job_is_over(tmp_path: Path) -> None:
    over: list[str] = []
    channel = FileChannel(tmp_path / "n1", lambda: over[0] if over else None)
    channel.write(b"ping")
    assert (tmp_path / "n1" / "in").read_bytes() == b"ping"

    def answer() -> None:
        time.sleep(0.2)
        (tmp_path / "n1" / "out").write_bytes(b"pong")
        over.append("Slurm job 7 ended: COMPLETED")

    thread = threading.Thread(target=answer)
    thread.start()
    assert channel.read() == b"pong"
    assert channel.read() == b""
    assert channel.end_reason() == "is released: Slurm job 7 ended: COMPLETED"
    thread.join()
    channel.close()
    with pytest.raises(OSError, match="closed"):
        channel.write(b"x")
    assert {path.name for path in (tmp_path / "n1").iterdir()} == {"in", "out"}


def test_a_node_that_does_not_answer_slurm_is_told_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "\n".join(
        f"NodeName={name} Arch=x86_64 CPUTot=4 NodeAddr={name} State={state} ThreadsPerCore=1"
        for name, state in (("n1", "MIXED"), ("n2", "DOWN*"), ("n3", "ALLOCATED*"), ("n4", "IDLE+NOT_RESPONDING"))
    )
    monkeypatch.setattr(commands, "_run", lambda words: subprocess.CompletedProcess(words, 0, shown, ""))
    assert commands.silent_nodes(["n1", "n2", "n3", "n4"]) == {"n2", "n3", "n4"}


@pytest.mark.parametrize("ending", ["NODE_FAIL", "COMPLETING"])
def test_when_a_node_fails_its_processes_are_the_cause_and_those_of_other_nodes_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str
) -> None:
    monkeypatch.setattr(commands, "silent_nodes", lambda nodes: {"n2"})
    members = [Member("worker", rank, f"n{rank + 1}", 20000 + rank, 0) for rank in range(2)]
    processes = [Process(member, 0, 1, {}) for member in members]

    class Job(SlurmJob):
        def __init__(self) -> None:
            """No job was submitted."""

        nodes: ClassVar[list[str]] = ["n1", "n2"]
        state = commands.JobState(ending)
        unanswered = None

        def raise_if_interrupted(self, *, now: bool) -> None:
            assert now

    def lose_all(self: AllocatedGroup, seconds: float, deliver: object) -> None:
        for process in processes[: 1 if not self._exits else 2]:  # the link to the node that lives may end first
            self._exits.setdefault(process, Exit(None, None, f"was lost: host {process.host!r} is released"))

    monkeypatch.setattr(RemoteGroup, "wait", lose_all)
    group = AllocatedGroup("token", tmp_path, {}, job=Job())  # type: ignore[arg-type]
    for process in processes:
        group.add(process)
    group.wait(0.1, lambda process, line: None)
    assert group.exit_of(processes[0]) is None
    found = group.exit_of(processes[1])
    assert found is not None
    assert found.cause == "was lost: node 'n2' failed (NODE_FAIL): its slurmd or its network is down"
    group.wait(0.1, lambda process, line: None)
    assert group.exit_of(processes[0]) is not None


def test_ends_of_processes_wait_until_slurm_has_said_why_it_ends_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commands, "silent_nodes", lambda nodes: set())
    process = Process(Member("worker", 0, "n1", 20000, 0), 0, 1, {})

    class Job(SlurmJob):
        def __init__(self) -> None:
            """No job was submitted."""

        nodes: ClassVar[list[str]] = ["n1"]
        state = commands.JobState("COMPLETING")
        unanswered = None

        def raise_if_interrupted(self, *, now: bool) -> None:
            if self.state.was_interrupted and now:
                raise AllocationEnded("pre-empted")

    monkeypatch.setattr(
        RemoteGroup, "wait", lambda self, seconds, deliver: self._exits.setdefault(process, Exit.from_returncode(-15))
    )
    job = Job()
    group = AllocatedGroup("token", tmp_path, {}, job=job)  # type: ignore[arg-type]
    group.add(process)
    group.wait(0.1, lambda process, line: None)
    assert group.exit_of(process) is None
    job.state = commands.JobState("PREEMPTED")
    with pytest.raises(AllocationEnded):
        group.wait(0.1, lambda process, line: None)
    job.state = commands.JobState("FAILED")
    group.wait(0.1, lambda process, line: None)
    assert group.exit_of(process) is not None

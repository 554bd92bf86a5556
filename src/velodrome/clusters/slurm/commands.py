"""The commands of Slurm: the batch script of a job, submitting, cancelling, and what became of the job.

The script has one `srun` step for each group of roles, whose tasks are the agents of the nodes.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from velodrome.catalog.registry import strategy_of
from velodrome.clusters.plan import Placement, place
from velodrome.clusters.remote.channels import agent_words
from velodrome.clusters.slurm import SlurmOptions
from velodrome.errors import BadRequest, Unavailable, VelodromeError, headline
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of

_SECONDS = 30.0
_TOOLS = ("sbatch", "scancel", "scontrol")
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_ALIVE = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
#: Ends that are nobody's mistake: the run can continue.
_INTERRUPTED = {
    "TIMEOUT": "its time limit was reached", "DEADLINE": "its deadline was reached",
    "PREEMPTED": "it was pre-empted by another job", "CANCELLED": "it was cancelled", "REVOKED": "it was revoked",
}
_FAILED = {
    "NODE_FAIL": "a node failed", "OUT_OF_MEMORY": "it used more memory than it was given",
    "BOOT_FAIL": "a node did not boot", "FAILED": "its script failed",
}


#: What Slurm says about a job that it has forgotten; every other error says nothing about the job.
_FORGOTTEN = "Invalid job id specified"
#: With what Slurm's commands begin their lines.
_SPEAKER = re.compile(r"^((sbatch|scontrol|scancel): (error: )?|slurm_load_jobs error: )")


class NoAnswer(VelodromeError):
    """Slurm's controller could not be asked."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"slurmctld does not answer: {reason}; try again when `scontrol ping` shows that it is up")
        self.reason = reason


@dataclass(frozen=True)
class JobState:
    """What Slurm says about a job."""

    name: str
    reason: str = ""
    nodes: str = ""
    #: The script that was submitted; empty if Slurm does not say.
    script: str = ""

    @property
    def is_waiting(self) -> bool:
        return self.name in _WAITING

    @property
    def is_over(self) -> bool:
        return not self.is_waiting and self.name not in _ALIVE

    @property
    def is_ending(self) -> bool:
        """Whether Slurm ends its processes, or has ended them."""
        return self.is_over or self.name == "COMPLETING"

    @property
    def was_interrupted(self) -> bool:
        return self.name in _INTERRUPTED

    def __str__(self) -> str:
        """Why it ended, as the end of a sentence."""
        words = _INTERRUPTED.get(self.name) or _FAILED.get(self.name)
        return f"{words} ({self.name})" if words else self.name


def missing_tools() -> list[str]:
    return [tool for tool in _TOOLS if shutil.which(tool) is None]


def require_tools() -> None:
    """Refuse a machine from which no job can be submitted."""
    if missing := missing_tools():
        raise Unavailable(
            f"--on slurm needs {', '.join(missing)}: run this command on a login node of the cluster", missing
        )


def check_submission(options: Sequence[str]) -> None:
    """Refuse options that Slurm would refuse."""
    done = _run(["sbatch", "--test-only", *options, "--wrap", "true"])
    if done.returncode:
        raise BadRequest(f"--on slurm: sbatch refuses the job: {_reason(done.stderr)}")


def submit(options: Sequence[str], script: str) -> int:
    """Submit a batch script; the number of the job."""
    done = _run(["sbatch", "--parsable", *options, script])
    number = done.stdout.strip().partition(";")[0]
    if done.returncode or not number.isdigit():
        raise VelodromeError(f"--on slurm: sbatch refuses the job: {_reason(done.stderr)}")
    return int(number)


def cancel(job: int) -> bool:
    """Cancel a job, whatever its state; whether Slurm took the request."""
    return _run(["scancel", "--full", "--quiet", str(job)]).returncode == 0


def state_of(job: int) -> JobState:
    """The state of a job; UNKNOWN if Slurm has forgotten it, `NoAnswer` if Slurm cannot be asked."""
    done = _run(["scontrol", "--oneliner", "show", "job", str(job)])
    if done.returncode == 0 and "JobState=" in done.stdout:
        return parse_state(done.stdout)
    if _FORGOTTEN not in done.stderr:
        raise NoAnswer(_reason(done.stderr))
    if shutil.which("sacct") is not None:
        done = _run(["sacct", "-n", "-X", "-P", "-j", str(job), "-o", "State,NodeList"])
        if done.returncode == 0 and (line := done.stdout.strip().partition("\n")[0]):
            name, _, nodes = line.partition("|")
            return JobState(name.split()[0], "", nodes)
    return JobState("UNKNOWN")


def parse_state(text: str) -> JobState:
    """Read a line of `scontrol --oneliner show job`."""
    fields = dict(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", text))
    nodes = fields.get("NodeList", "")
    script = re.search(r"\sCommand=(.*?)(?=\s\w+=|$)", text)  # whose path may have blanks
    return JobState(fields.get("JobState", "UNKNOWN"), fields.get("Reason", ""), "" if nodes == "(null)" else nodes,
                    script[1].strip() if script else "")


def node_names(nodes: str) -> list[str]:
    """The names of a list such as `n[1-2]`, in the order of the allocation."""
    done = _run(["scontrol", "show", "hostnames", nodes])
    if done.returncode:
        raise VelodromeError(f"--on slurm: the nodes {nodes!r} cannot be read: {_reason(done.stderr)}")
    return done.stdout.split()


def idle_nodes(partition: str | None) -> int:
    """How many nodes of a partition, by default of Slurm's own default, wait for a job; 0 if that is not known."""
    done = _run(["sinfo", "-h", "-N", "-t", "idle", "-o", "%N %P", *(["-p", partition] if partition else [])])
    rows = [line.split() for line in done.stdout.splitlines() if done.returncode == 0]
    return len({row[0] for row in rows if len(row) == 2 and (partition or row[1].endswith("*"))})


def silent_nodes(nodes: Sequence[str]) -> set[str]:
    """Those of the nodes that do not answer Slurm, or that it has given up."""
    done = _run(["scontrol", "--oneliner", "show", "node", ",".join(nodes)])
    rows = re.findall(r"NodeName=(\S+).*?\bState=(\S+)", done.stdout)
    return {name for name, state in rows if "*" in state or "NOT_RESPONDING" in state or state.startswith("DOWN")}


def node_address(node: str) -> str:
    """The address at which Slurm reaches a node; its name if that is not known."""
    done = _run(["scontrol", "--oneliner", "show", "node", node])
    match = re.search(r"\bNodeAddr=(\S+)", done.stdout)
    return match[1] if match else node


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS,
                              start_new_session=True)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]} did not answer within {_SECONDS:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(words, 127, "", f"{words[0]} cannot be started: {error.strerror}")


def _reason(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    words = (_SPEAKER.sub("", line.strip()) for line in lines)
    return headline("; ".join(dict.fromkeys(words))) or "it gives no reason"


#: Placeholders of words that differ from node to node.
_SESSION, _INBOX, _OUTBOX = "@session@", "@inbox@", "@outbox@"
#: In the folder of a job's mail: the batch script writes something new to it every so many seconds while the job lasts.
_HEARTBEAT, _BEAT_SECONDS = "heartbeat", 2


@dataclass(frozen=True)
class Step:
    """Nodes that follow one another in the allocation and have processes of the same roles."""

    roles: str
    first: int
    nodes: int


def nodes_of(job: Job, options: SlurmOptions) -> int:
    """How many nodes a job gets."""
    if options.nodes is not None:
        return options.nodes
    processes = len(roles_of(job))
    if options.placement == "pack":
        return -(-processes // (options.slots or options.cpus or 1))
    return processes


def steps_of(job: Job, nodes: int, placement: Placement) -> list[Step]:
    """The steps of a job, by the roles that each node gets; nodes without a process have none."""
    if placement.pins:
        raise BadRequest("--place: the nodes of a Slurm job are not known before it starts; leave --place out")
    numbers = [str(number) for number in range(nodes)]
    roles: list[list[str]] = [[] for _ in numbers]
    places = place(roles_of(job), numbers, placement, {}, as_beside=strategy_of(job).servers_beside_workers)
    for (role, _), node in zip(roles_of(job), places, strict=True):
        if role not in roles[int(node)]:
            roles[int(node)].append(role)
    steps: list[Step] = []
    for number, held in enumerate(roles):
        name = "+".join(held)
        if steps and steps[-1].roles == name and steps[-1].first + steps[-1].nodes == number:
            steps[-1] = Step(name, steps[-1].first, steps[-1].nodes + 1)
        elif name:
            steps.append(Step(name, number, 1))
    return steps


def sbatch_options(options: SlurmOptions, nodes: int, name: str, log: Path) -> list[str]:
    """What sbatch is asked for."""
    named = {
        "job-name": name, "nodes": str(nodes), "ntasks-per-node": "1", "partition": options.partition,
        "account": options.account, "qos": options.qos, "time": options.time,
        "cpus-per-task": None if options.cpus is None else str(options.cpus), "gpus-per-node": options.gpus,
        "mem": options.memory, "output": str(log), "open-mode": "append",
    }
    # A job that comes back would find nobody to start its processes: `velodrome resume` submits a new one.
    return [*(f"--{key}={value}" for key, value in named.items() if value is not None), "--no-requeue", *options.sbatch]


def srun_words(step: Step, options: SlurmOptions, shared: str) -> list[str]:
    """One step: an agent on each of its nodes."""
    words = ["srun", f"--job-name={step.roles}", f"--relative={step.first}", f"--nodes={step.nodes}",
             f"--ntasks={step.nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--unbuffered"]
    if options.cpus is not None:
        words.append(f"--cpus-per-task={options.cpus}")
    if options.gpus is not None:
        words.append(f"--gpus-per-node={options.gpus}")
    if options.container is not None:
        bundle = Path(options.container, "config.json").is_file()
        words += [f"--container={options.container}"] if bundle else [
            f"--container-image={options.container}", f"--container-mounts={shared}:{shared}",
        ]
    return [*words, *options.srun]


def batch_script(steps: Sequence[Step], options: SlurmOptions, mail: Path) -> str:
    """What runs on the first node: all steps at the same time, until they end, beside a heartbeat."""
    shared = str(Path(options.shared_dir or ".").resolve())
    agent = shlex.quote(str(mail / "agent.sh"))
    lines = ["#!/bin/sh", f"# Agents of velodrome; lines travel through {mail}"]
    for step in steps:
        lines += [f"{shlex.join(srun_words(step, options, shared))} sh {agent} &", 'steps="$steps $!"']
    beat = shlex.quote(str(mail / _HEARTBEAT))
    lines += [
        f"(while kill -0 $$; do date +%s > {beat}; sleep {_BEAT_SECONDS}; done) 2> /dev/null &",
        "beating=$!", "wait $steps", "kill $beating",
    ]
    return "\n".join([*lines, ""])


def agent_script(options: SlurmOptions, mail: Path, python: str, session: str) -> str:
    """What runs on each node: it becomes the agent, which serves two files of its own. It waits for its controller
    while the job's heartbeat shows that the job lasts, so that a new one can take over. A node that Slurm cannot reach
    is left without either, and its agent ends everything there by itself."""
    words = agent_words(_SESSION, options.silence, options.root, _INBOX, _OUTBOX, str(mail / _HEARTBEAT))
    folder = shlex.quote(str(mail))
    line = " ".join(map(shlex.quote, [python, *words])).replace(_SESSION, f'"{session}$node"')
    line = line.replace(_INBOX, f'{folder}/"$node"/in').replace(_OUTBOX, f'{folder}/"$node"/out')
    return "\n".join([
        'node="${SLURMD_NODENAME:-$(hostname -s)}"',
        f'mkdir -p {folder}/"$node" || exit 1',
        f"exec {line} < {folder}/agent",
        "",
    ])

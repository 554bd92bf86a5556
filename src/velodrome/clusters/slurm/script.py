"""The batch script of a job: one `srun` step for each group of roles, whose tasks are the agents of the nodes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from velodrome.clusters.placement import Placement, place
from velodrome.clusters.remote import bootstrap
from velodrome.clusters.slurm.options import SlurmOptions
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of

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
    for (role, _), node in zip(roles_of(job), place(roles_of(job), numbers, placement, {}), strict=True):
        if role not in roles[int(node)]:
            roles[int(node)].append(role)
    found: list[Step] = []
    for number, held in enumerate(roles):
        name = "+".join(held)
        if found and found[-1].roles == name and found[-1].first + found[-1].nodes == number:
            found[-1] = Step(name, found[-1].first, found[-1].nodes + 1)
        elif name:
            found.append(Step(name, number, 1))
    return found


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
    """What runs on the first node: all steps at the same time, until they end, and a heartbeat meanwhile."""
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
    words = [shlex.quote(word) for word in bootstrap.command(
        python, _SESSION, options.silence, options.root, _INBOX, _OUTBOX, str(mail / _HEARTBEAT)
    )]
    folder = shlex.quote(str(mail))
    line = " ".join(words).replace(_SESSION, f'"{session}$node"')
    line = line.replace(_INBOX, f'{folder}/"$node"/in').replace(_OUTBOX, f'{folder}/"$node"/out')
    return "\n".join([
        'node="${SLURMD_NODENAME:-$(hostname -s)}"',
        f'mkdir -p {folder}/"$node" || exit 1',
        f"exec {line} < {folder}/agent",
        "",
    ])

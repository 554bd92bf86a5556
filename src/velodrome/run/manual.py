"""Jobs that people start themselves, without a controller: `python -m velodrome.run.manual` is one process of such a
job, and the files that start all of them (for Slurm, SkyPilot and Docker Compose) are written here.

The process starts training as a child, keeps its events in the run's folder on this host and prints the essential ones.
With the chief, it also writes the job and the result. Nothing is submitted.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from velodrome import files
from velodrome.catalog.registry import engine_of
from velodrome.catalog.world import World
from velodrome.clusters.launcher import Exit
from velodrome.clusters.local.processes import run_in_foreground
from velodrome.clusters.plan import Plan, Process, arguments, environment
from velodrome.errors import BadRequest, RunFailed, VelodromeError, printable
from velodrome.events import event_files, parse_event, read_events
from velodrome.events.models import EpochEvent, ErrorEvent, Event, PhaseEvent, ResultEvent, WarningEvent
from velodrome.job.job import Job
from velodrome.job.result import Ended
from velodrome.run.outcome import make_result
from velodrome.run.state import Failure, RunState
from velodrome.tasks.registry import task_of
from velodrome.variables import JOB, SECRET, WORLD


@dataclass(frozen=True)
class Part:
    """The part of a job that this host was asked to start."""

    plan: Plan
    process: Process
    folder: Path
    #: From the monotonic clock to Unix time, as it was at the start.
    _epoch: float = field(default_factory=lambda: time.time() - time.monotonic(), repr=False)

    def now(self) -> float:
        """Unix seconds by a clock that cannot jump while the part runs."""
        return self._epoch + time.monotonic()

    @property
    def events_file(self) -> Path:
        return self.folder / f"events-{self.process.file_name}.jsonl"


def _parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m velodrome.run.manual", description="Start one process of a job that has no controller; "
        "`velodrome plan` prints the whole line, with the environment that it requires.",
        parents=[_waiting()],
    )
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--role", required=True, help="role of the process, as the strategy names it")
    parser.add_argument("--rank", required=True, type=int, help="number of the process among those of its role")
    parser.add_argument("--folder", required=True, type=Path, help="the run's folder on this host")
    parser.add_argument("--slot", default="0/0", help="place among the computing processes of this host, as 0/2")
    return parser.parse_args(words)


def _waiting() -> argparse.ArgumentParser:
    """The options that the training process does not have."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--names-within", type=float, default=0.0, metavar="SECONDS",
                        help="first wait until the hosts of all processes are known by name, but not longer")
    return parser


def _part(options: argparse.Namespace) -> Part:
    """The job and its processes as the environment has them."""
    try:
        job = Job.model_validate_json(os.environ[JOB])
        world = World.from_json(os.environ[WORLD], options.role, options.rank)
    except KeyError as error:
        raise BadRequest(f"{error.args[0]} is not set: paste the whole line that `velodrome plan` printed") from None
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{JOB} or {WORLD} cannot be read: {error}") from None
    processes = {member: Process(member, 0, 0, {}) for member in world.members}
    return Part(Plan(options.run, job, tuple(processes.values())), processes[world.me], options.folder)


def _prepare(folder: Path) -> None:
    if (folder / "result.json").exists():
        raise BadRequest(f"--run {folder.name!r}: {folder} holds a run already, and none is ever overwritten")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(f"--folder {str(folder)!r}: cannot write there: {error.strerror}") from None


def wait_for_names(part: Part, seconds: float) -> None:
    """Return when the hosts of all processes are known by name; `RunFailed` names those that are not in time."""
    deadline = time.monotonic() + seconds
    unknown = [process for process in part.plan.processes if seconds]
    while unknown := [process for process in unknown if not _is_known(process.host)]:
        if time.monotonic() > deadline:
            names = ", ".join(f"{process.name} ({process.host})" for process in unknown)
            raise RunFailed(f"no address of {names} is known after {seconds:g} s: see whether it was started, and "
                            "whether the names of the cluster are resolved")
        time.sleep(min(1.0, seconds))


def _is_known(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except OSError:
        return False


def sentence(event: Event, job: Job) -> str | None:
    """An event as a person reads it, or None if it is not worth a line."""
    task = task_of(job)
    if isinstance(event, PhaseEvent) and event.state == "begin" and event.epoch is None:
        return f"{event.phase} …"
    if isinstance(event, EpochEvent):
        parts = {"train": event.train, "validation": event.validation}
        values = {part: task.in_words(counts.as_json()) for part, counts in parts.items()}
        return f"epoch {event.epoch}: " + ", ".join(f"{part} {value}" for part, value in values.items() if value)
    if isinstance(event, ResultEvent):
        test = event.test.as_json()
        return f"test {task.in_words(test)} ({task.amount(test)})"
    if isinstance(event, ErrorEvent | WarningEvent):
        return f"{event.kind}: {event.message}"
    return None


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def take(part: Part, line: str) -> None:
    """Keep an event line in the run's folder and print its essence; anything else is printed."""
    event = parse_event(line)
    if event is None:
        _say(line)
        return
    with suppress(OSError), part.events_file.open("a", encoding="utf-8") as stream:  # the disk may be full
        stream.write(line + "\n")
    if words := sentence(event, part.plan.job):
        _say(f"{part.process.name}: {words}")


def finish(part: Part, status: Ended, end: Exit) -> None:
    """With the chief: compile the result from the events that are on this host."""
    events = [event for path in event_files(part.folder) for event in read_events(path)]
    events.sort(key=lambda event: event.time)
    started = events[0].time if events else part.now()
    state, failure = RunState.of(part.plan, started, events), None
    if status != "finished":
        me = part.process
        error = state.processes[me.role, me.rank].error
        what = f": {error.message}" if error else f" {end.cause}"
        failure = Failure(f"{me.name} on {me.host}{what}", me.role, me.rank, me.host,
                          cause=error.cause if error else "exit")
    result = make_result(
        part.plan, state, str(part.folder.resolve()), status, ended=part.now(), failure=failure, launcher="manual",
    )
    files.write_text(part.folder / "job.yaml", yaml.safe_dump(part.plan.job.model_dump(), sort_keys=False))
    files.write_text(part.folder / "result.json", json.dumps(result.as_json(), indent=2) + "\n")
    _say(f"{part.process.name}: the result is in {part.folder / 'result.json'}")


def main(words: list[str] | None = None) -> int:
    """Run one process of a job; the exit code: 0 finished, 1 failed, 2 cannot be done as asked, 130 Ctrl-C."""
    words = sys.argv[1:] if words is None else words
    try:
        options = _parse(words)
        part = _part(options)
        _prepare(part.folder)
        part.events_file.write_text("")
        wait_for_names(part, options.names_within)
    except VelodromeError as error:
        _say(f"velodrome: {error}")
        return error.exit_code
    _, words = _waiting().parse_known_args(words)
    end, interrupted = run_in_foreground(engine_of(part.plan.job).key, words, lambda line: take(part, line))
    status: Ended = "finished" if end.is_success else "interrupted" if interrupted else "failed"
    if part.process is part.plan.chief:
        finish(part, status, end)
    return 130 if status == "interrupted" else end.code if end.code is not None else 1


#: What stands in a plan for the address of the host with that number, until it is known.
_HOST = "VELODROME-HOST-{}"


def host_names(count: int) -> list[str]:
    """Names for hosts whose addresses are known only where the job runs."""
    return [_HOST.format(number) for number in range(count)]


def _starts(plan: Plan, host: str, runs: Path, python: str, quoted: Callable[[str], str]) -> list[str]:
    """The lines that start the processes of a host. The secret is not among the variables: everybody on the host sees
    command lines."""
    lines = []
    for process in (process for process in plan.processes if process.host == host):
        words = [f"{name}={quoted(value)}" for name, value in environment(plan, process).items() if name != SECRET]
        command = [python, "-m", "velodrome.run.manual", *arguments(plan, process, runs / plan.run)]
        lines.append(f"env {' '.join(words)} {shlex.join(command)} &")
    return lines


def _script(plan: Plan, runs: Path, python: str, node: str) -> str:
    """A part of a shell script that starts the processes of the host whose number is in a variable."""
    lines = [f'case "${node}" in']
    for number, host in enumerate(plan.hosts):
        starts = _starts(plan, host, runs, python, lambda value: _with_addresses(value, plan))
        lines += [f"  {number})", *(f"    {line}" for line in starts), "    ;;"]
    lines += ["esac", 'status=0; for job in $(jobs -p); do wait "$job" || status=$?; done; exit "$status"']
    return "\n".join(lines)


def _with_addresses(value: str, plan: Plan) -> str:
    """A value for a shell, in which names of hosts are replaced by variables with their addresses."""
    text = shlex.quote(f"{value} ")  # the space makes sure that it is in single quotes
    for number, host in reversed([*enumerate(plan.hosts)]):
        text = text.replace(host, f"'\"$HOST_{number}\"'")
    return text.removesuffix(" '") + "'"


def slurm(plan: Plan, runs: Path, python: str) -> str:
    """A batch script: one task on each node, which starts the processes of its node."""
    nodes = len(plan.hosts)
    most = max(sum(process.host == host for process in plan.processes) for host in plan.hosts)
    first = "awk 'NR==1 {print $1}'"
    addresses = [f'HOST_{number}=$(getent ahostsv4 "${{NODES[{number}]}}" | {first})' for number in range(nodes)]
    exports = " ".join(f"HOST_{number}" for number in range(nodes))
    return "\n".join([
        "#!/bin/bash",
        f"# {plan.job.engine}/{plan.job.strategy}: submit it with `sbatch FILE`; needs velodrome on every node.",
        f"#SBATCH --job-name={plan.run}", f"#SBATCH --nodes={nodes}", "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={most}", "",
        'mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")', *addresses,
        f"export {exports} {SECRET}={plan.secret}", "",
        "srun --kill-on-bad-exit=1 bash -c " + shlex.quote(f"\n{_script(plan, runs, python, 'SLURM_NODEID')}\n"), "",
    ])


def skypilot(plan: Plan, runs: Path, python: str) -> str:
    """A task: SkyPilot gives every node its number and the addresses of all."""
    addresses = "\n".join(
        f'HOST_{number}=$(echo "$SKYPILOT_NODE_IPS" | sed -n {number + 1}p)' for number in range(len(plan.hosts))
    )
    task = {
        "name": plan.run, "num_nodes": len(plan.hosts), "workdir": ".",
        "setup": _installation(plan),
        "run": f"{addresses}\nexport {SECRET}={plan.secret}\n{_script(plan, runs, python, 'SKYPILOT_NODE_RANK')}\n",
    }
    return f"# Start it with `sky launch FILE`.\n{yaml_text(task)}"


def _installation(plan: Plan) -> str:
    """The commands that install what a job needs: an extra of Velodrome, or an environment of the engine's own."""
    engine = engine_of(plan.job)
    if engine.own_environment is None:
        return f"pip install 'velodrome[{engine.name}]'"
    return f"pip install velodrome\n{engine.install_command}\n"


def compose(plan: Plan, runs: Path, python: str, image: str = "velodrome") -> str:
    """One service per host, in a network of their own; the name of a service is the address of its host."""
    services = {}
    for number, host in enumerate(plan.hosts):
        lines = _starts(plan, host, runs, python, lambda value: shlex.quote(_as_services(value, plan)))
        lines.append('status=0; for job in $$(jobs -p); do wait "$$job" || status=$$?; done; exit "$$status"')
        services[_service(number)] = {
            "image": image, "hostname": _service(number), "working_dir": "/work", "volumes": [".:/work"],
            "shm_size": "1gb", "environment": {SECRET: plan.secret}, "command": ["bash", "-c", "\n".join(lines)],
        }
    start = "docker compose -f FILE up --abort-on-container-failure"
    return (f"# Start it with `{start}`; the image {image!r} must have velodrome.\n"
            f"{yaml_text({'name': plan.run.lower().replace('.', '-'), 'services': services})}")


def _service(number: int) -> str:
    return f"host{number}"


def _as_services(value: str, plan: Plan) -> str:
    for number, host in reversed([*enumerate(plan.hosts)]):
        value = value.replace(host, _service(number))
    return value.replace("$", "$$")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, which people can read, and nothing as a reference."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def yaml_text(content: Mapping[str, object]) -> str:
    """An object as YAML that people can read."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=10**6)


FORMATS: Mapping[str, Callable[[Plan, Path, str], str]] = {"slurm": slurm, "skypilot": skypilot, "compose": compose}


if __name__ == "__main__":
    sys.exit(main())

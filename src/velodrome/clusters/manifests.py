"""Files for people who start jobs themselves: a batch script for Slurm, a task for SkyPilot, a file for Docker Compose.

Each starts the same processes as `velodrome plan`, with the environment that they need. Nothing is submitted.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from velodrome.catalog.registry import engine_of
from velodrome.clusters.plan import Plan, Process, arguments, environment
from velodrome.variables import SECRET

#: What stands in a plan for the address of the host with that number, until it is known.
_HOST = "VELODROME-HOST-{}"


def host_names(count: int) -> list[str]:
    """Names for hosts whose addresses are known only where the job runs."""
    return [_HOST.format(number) for number in range(count)]


def _command(plan: Plan, process: Process, runs: Path, python: str) -> str:
    return shlex.join([python, "-m", "velodrome.run.manual", *arguments(plan, process, runs / plan.run)])


def _shown(plan: Plan, process: Process) -> list[tuple[str, str]]:
    """The variables that may be on a command line, where everybody on the host sees them."""
    return [(name, value) for name, value in environment(plan, process).items() if name != SECRET]


def _script(plan: Plan, runs: Path, python: str, node: str) -> str:
    """A part of a shell script that starts the processes of the host whose number is in a variable."""
    lines = [f'case "${node}" in']
    for number, host in enumerate(plan.hosts):
        lines.append(f"  {number})")
        for process in (process for process in plan.processes if process.host == host):
            words = [f"{name}={_with_addresses(value, plan)}" for name, value in _shown(plan, process)]
            lines.append(f"    env {' '.join(words)} {_command(plan, process, runs, python)} &")
        lines.append("    ;;")
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
    return f"# Start it with `sky launch FILE`.\n{_yaml(task)}"


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
        lines = []
        for process in (process for process in plan.processes if process.host == host):
            words = [f"{name}={shlex.quote(_as_services(value, plan))}" for name, value in _shown(plan, process)]
            lines.append(f"env {' '.join(words)} {_command(plan, process, runs, python)} &")
        lines.append('status=0; for job in $$(jobs -p); do wait "$$job" || status=$$?; done; exit "$$status"')
        services[_service(number)] = {
            "image": image, "hostname": _service(number), "working_dir": "/work", "volumes": [".:/work"],
            "shm_size": "1gb", "environment": {SECRET: plan.secret}, "command": ["bash", "-c", "\n".join(lines)],
        }
    start = "docker compose -f FILE up --abort-on-container-failure"
    return (f"# Start it with `{start}`; the image {image!r} must have velodrome.\n"
            f"{_yaml({'name': plan.run.lower().replace('.', '-'), 'services': services})}")


def _service(number: int) -> str:
    return f"host{number}"


def _as_services(value: str, plan: Plan) -> str:
    for number, host in reversed([*enumerate(plan.hosts)]):
        value = value.replace(host, _service(number))
    return value.replace("$", "$$")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, which people can read."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def _yaml(content: Mapping[str, object]) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=10**6)


FORMATS: Mapping[str, Callable[[Plan, Path, str], str]] = {"slurm": slurm, "skypilot": skypilot, "compose": compose}

"""Commands that look at a job before it runs: `velodrome check`, `doctor` and `plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import velodrome
from velodrome.cli import completion
from velodrome.cli.options import (
    JobFile,
    JobMirror,
    Json,
    Name,
    On,
    Place,
    Runs,
    TrustCode,
    job_from,
    where,
    with_job_options,
)
from velodrome.cli.output import SafeConsole, print_table, say, say_json, say_on_stderr
from velodrome.errors import bytes_text

#: Layers that are listed; `--json` has all of them.
_MOST_LAYERS = 60
_MEMORY = {
    "weight_bytes": "weights", "gradient_bytes": "gradients", "optimizer_bytes": "optimizer state",
    "activation_bytes": "activations (estimate)", "data_bytes": "data", "mapped_bytes": "data mapped from disk",
}


@with_job_options
def check_command(
    file: JobFile = None, on: On = None, mirror: JobMirror = None, trust_code: TrustCode = None, json: Json = False,
    *, fields: dict[str, Any],
) -> None:
    """Try a job before training: train for a second in one process, and report its time and memory.

    Prints how long the whole job will take, the layers with their share of the time, the memory of one process, the
    expected traffic per step of every strategy of the engine, and which of them would refuse the job and why. Nothing
    is stored. If your model, loss or data fails, one sentence says what is wrong, with the lines of your own code.

    A script of your own runs with all of its workers in a copy of the current folder, which is removed afterwards. It
    is stopped after 50 steps, 10 seconds of training or a minute. The command prints the figures that the script
    reported, how fast it trained and, if it reports total_steps or total_epochs or has an argument such as
    --epochs, how long the whole job takes.

    Examples:

    `velodrome check --dataset digits --model dense-300-100 --engine torch`

    `velodrome check --model my_nets:build --dataset path:photos --workers 4`

    `velodrome check --script train.py --script-args "--batch-size {64/workers}" --workers 2`

    Exit codes: 0 it trained, 1 your code failed, 2 the request is not valid.
    """
    from velodrome.cli.console import data_progress
    from velodrome.run.dry_run import DryRunFailed

    job = job_from(file, fields, trust_code, on)
    try:
        with data_progress() as progress:
            checked = velodrome.check(job, on=where(on, job=job), mirror=mirror, on_download=progress.data)
    except DryRunFailed as error:
        if error.failure.traceback:
            say_on_stderr(error.failure.traceback.rstrip())
        if json:
            say_json({"error": error.failure.as_json()})
        raise
    if json:
        say_json(checked)
    elif job.script is not None:
        _print_script(checked)
    else:
        _print(checked)


def _print_script(trial: dict[str, Any]) -> None:
    from velodrome.judge.phrases import in_words
    from velodrome.run.script_trial import BY_ITSELF

    console = SafeConsole(markup=False)
    workers = f"{trial['workers']} worker{'' if trial['workers'] == 1 else 's'}"
    ended = "the script ended" if trial["ended"] == BY_ITSELF else f"ended {trial['ended']}"
    lines = [f"{trial['script']}, {trial['engine']}, {workers}: {ended}, {trial['seconds']:.1f} s in all"]
    pace = [f"start-up {trial['startup_seconds']:.1f} s" if trial["startup_seconds"] is not None else "",
            f"{trial['steps']:,} steps" if trial["steps"] else "",
            f"{trial['steps_per_second']:,.1f} steps/s" if trial["steps_per_second"] else "",
            f"{trial['examples_per_second']:,.0f} examples/s" if trial["examples_per_second"] else ""]
    lines += [", ".join(filter(None, pace))]
    reported = [f"{part} {name} {'not finite' if value is None else format(value, '.4g')}"
                for part, figures in trial["figures"].items() for name, value in figures.items()]
    lines += [f"reported: {', '.join(reported)}" if reported else "it reported no figures: call velodrome.log in it"]
    if trial.get("read"):
        lines += [f"to read a figure from what it printed: {trial['read']}"]
    if trial["expected_seconds"] is not None:
        lines += [f"the whole job takes about {in_words(trial['expected_seconds'])} at this pace"]
    elif trial["ended"] != BY_ITSELF:
        lines += ["how long the whole job takes is unknown: report its length with velodrome.log(total_epochs=…)"]
    written = f" ({', '.join(trial['written'])})" if trial["written"] else ""
    lines += [f"it ran in a copy of this folder; the copy and what it wrote there are removed{written}"]
    lines += [f"left out of the copy: {', '.join(trial['left_out'])}"] if trial["left_out"] else []
    for line in (*filter(None, lines), *(f"warning: {warning}" for warning in trial["warnings"])):
        console.print(line, soft_wrap=True)


def _print(checked: dict[str, Any]) -> None:
    from velodrome.judge.phrases import in_words

    console = SafeConsole(markup=False)
    console.print(
        f"{checked['model']} on {checked['dataset']}, {checked['engine']}, {checked['task']}: "
        f"{checked['parameters']:,} parameters; a step of {checked['batch']:,} examples took "
        f"{checked['step_seconds'] * 1e3:,.1f} ms", soft_wrap=True,
    )
    console.print(f"the whole job takes about {in_words(checked['seconds'])} at this pace", soft_wrap=True)
    if checked["layers"]:
        _print_layers(console, checked["layers"])
    _print_memory(console, checked["memory"])
    _print_strategies(console, checked)
    for warning in checked["warnings"]:
        console.print(f"warning: {warning}", soft_wrap=True)


def _print_layers(console: SafeConsole, layers: list[dict[str, Any]]) -> None:

    table = _table("layer", "class", "output", "parameters", "time")
    for layer in layers[:_MOST_LAYERS]:
        parameters = layer.get("parameters", 0)
        table.add_row(
            layer["name"], layer.get("kind", ""), "×".join(map(str, layer.get("shape", ()))),
            f"{parameters:,}" if parameters else "", "" if layer["share"] is None else f"{layer['share']:.1%}",
        )
    print_table(console, table)
    if len(layers) > _MOST_LAYERS:
        console.print(f"and {len(layers) - _MOST_LAYERS} more layers: --json lists all", soft_wrap=True)


def _print_memory(console: SafeConsole, memory: dict[str, int | None]) -> None:

    parts = [f"{what} {bytes_text(memory[name] or 0)}" for name, what in _MEMORY.items() if memory[name]]
    console.print(f"memory of one process, besides the framework: {', '.join(parts)}", soft_wrap=True)


def _print_strategies(console: SafeConsole, checked: dict[str, Any]) -> None:

    size = checked["memory"]["gradient_bytes"]
    console.print(f"\nexpected traffic per worker and step, for G = {bytes_text(size)} of gradients:", soft_wrap=True)
    table = _table("strategy", "workers", "one host", "several hosts", "formula, or why it would be refused")
    for row in checked["strategies"]:
        traffic = row["traffic"]
        cells = [bytes_text(traffic[place]) for place in ("one_host", "several_hosts")] if traffic else ["?", "?"]
        about = f"refused: {row['refused']}" if row["refused"] else traffic["formula"] if traffic else ""
        table.add_row(row["strategy"], str(row["workers"]), *cells, about)
    print_table(console, table)


def _table(*headings: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for place, heading in enumerate(headings):
        numbers = heading in ("parameters", "time", "workers", "one host", "several hosts")
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=numbers or heading == "strategy",
                         overflow="fold" if place == 0 else "ellipsis")
    return table


#: How many files of the user's code are printed.
MOST_FILES = 50
Measure = Annotated[
    bool, typer.Option("--measure", help="Measure round-trip time and bandwidth between every pair of hosts.")
]


@with_job_options
def doctor_command(
    file: JobFile = None, on: On = None, place: Place = None, measure: Measure = False, mirror: JobMirror = None,
    trust_code: TrustCode = None, json: Json = False, *, fields: dict[str, Any],
) -> None:
    """Check this machine or a cluster for whatever would keep a job from running, and say how to fix it.

    On a cluster it checks all hosts at the same time: whether they can be reached, names and addresses, ports between
    them, versions of Python and packages, clocks, disk, memory, the job's data, and your own modules. Each finding
    names the host, the cause and how to fix it. The files of your code that the job would send are listed. On this
    machine it also measures how many cores other programs use, because they make the results of races less certain.

    Example: `velodrome doctor --engine torch --strategy ddp --workers 2 --model dense-128`

    Exit codes: 0 no error, 1 at least one error.
    """
    from velodrome.api.clusters import doctor

    job = job_from(file, fields, trust_code, on)
    diagnosis = doctor(job, on=where(on, place, job), measure=measure, mirror=mirror, on_wait=say_on_stderr)
    print_findings(diagnosis, as_json=json)


def print_findings(diagnosis: dict[str, Any], *, as_json: bool) -> None:
    """Print findings, and end with 1 if one of them is an error."""
    if as_json:
        say_json(diagnosis)
    else:
        if (code := diagnosis["code"]) is not None:
            say(f"code sent to each host: {len(code['files'])} files, {bytes_text(code['bytes'])}")
            for file in code["files"][:MOST_FILES]:
                say(f"  {file['name']} ({bytes_text(file['bytes'])})")
            if (more := len(code["files"]) - MOST_FILES) > 0:
                say(f"  and {more} more, which --json lists")
        for finding in diagnosis["findings"]:
            say(f"{finding['level']}: {finding['sentence']}")
        for pair in diagnosis["pairs"]:
            if pair["round_trip"] is None:
                say(f"{pair['from']} to {pair['to']}: not connected")
            else:
                say(f"{pair['from']} to {pair['to']}: round trip {1e3 * pair['round_trip']:.2f} ms, "
                    f"{pair['bandwidth'] / 1e6:,.0f} Mbit/s")
        fine = "no errors, but see the warnings" if diagnosis["findings"] else "nothing is wrong"
        say(f"{diagnosis['cluster']}: " + (fine if diagnosis["ok"] else "jobs cannot run as they should"))
    if not diagnosis["ok"]:
        raise typer.Exit(1)


_PANEL = "Hosts"
Hosts = Annotated[
    str, typer.Option("--hosts", help="Addresses of the machines, separated by commas.", rich_help_panel=_PANEL)
]
Port = Annotated[int, typer.Option("--port", help="First port to use; the next ones follow.", rich_help_panel=_PANEL)]
Python = Annotated[
    str, typer.Option("--python", help="Interpreter on the machines that has velodrome.", rich_help_panel=_PANEL)
]

Format = Annotated[
    str | None,
    typer.Option("--format", help="Print a file that starts the job: slurm (sbatch), skypilot, compose (Docker), k8s "
                 "or jobset (Kubernetes).", rich_help_panel=_PANEL,
                 autocompletion=completion.one_of("slurm", "skypilot", "compose", "k8s", "jobset")),
]
Pods = Annotated[
    str | None,
    typer.Option("--on", metavar="NAME", autocompletion=completion.launchers, rich_help_panel=_PANEL,
                 show_default=False, help="With --format k8s or jobset: image and resources of the pods, as "
                 "k8s:image=NAME,gpus=1, or a Kubernetes cluster of clusters.yaml."),
]



@with_job_options
def plan_command(
    file: JobFile = None,
    hosts: Hosts = "127.0.0.1",
    port: Port = 29400,
    python: Python = "python",
    name: Name = None,
    runs: Runs = Path("runs"),
    format: Format = None,
    pods: Pods = None,
    place: Place = None,
    trust_code: TrustCode = None,
    json: Json = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Print the exact command and environment that starts each process of a job, host by host.

    Paste each line into a shell on its host, in any order; training begins when all processes have connected.

    With --format it prints a file for Slurm, SkyPilot or Docker Compose instead; only the number of hosts matters then.
    For Kubernetes, it prints manifests for `kubectl apply`, with a pod for each process.

    Example: `velodrome plan --engine tensorflow --strategy multi-worker-mirrored --workers 3 --hosts 10.0.0.1,10.0.0.2,10.0.0.3`
    """  # noqa: E501
    from velodrome.clusters.plan import parse_pins
    from velodrome.errors import BadRequest

    names = [host.strip() for host in hosts.split(",") if host.strip()]
    if not names:
        raise BadRequest(f"--hosts {hosts!r}: name at least one host, for example --hosts 10.0.0.1,10.0.0.2")
    made = velodrome.plan(job_from(file, fields, trust_code, pods), names, port=port, python=python, name=name,
                          runs=runs, format=format, place=parse_pins(place or []), on=pods)
    if json:
        say_json(made)
        return
    if format is not None:
        say(made["file"].rstrip("\n"), longest=None)
        return
    for host in names:
        say(f"# on {host}")
        for process in made["processes"]:
            if process["host"] == host:
                say(f"# {process['role']} {process['rank']}\n{process['command']}", longest=None)  # to be pasted whole
        say()

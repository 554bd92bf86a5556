"""`velodrome check`: a second of a job, its layers, memory and traffic, and what would be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from velodrome.cli.options import JobCommand, JobFile, JobMirror, Json, On, TrustCode, job_from, where, with_job_options

if TYPE_CHECKING:
    from velodrome.cli.safe_console import SafeConsole

CLASS = JobCommand
#: Layers that are listed; `--json` has all of them.
_MOST_LAYERS = 60
_MEMORY = {
    "weight_bytes": "weights", "gradient_bytes": "gradients", "optimizer_bytes": "optimizer state",
    "activation_bytes": "activations (estimate)", "data_bytes": "data", "mapped_bytes": "data mapped from disk",
}


@with_job_options
def command(
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
    from velodrome.api.check import check
    from velodrome.cli.console import data_progress
    from velodrome.cli.output import say_json, say_on_stderr
    from velodrome.run.dry_run import RehearsalFailed

    job = job_from(file, fields, trust_code, on)
    try:
        with data_progress() as progress:
            found = check(job, on=where(on, job=job), mirror=mirror, on_download=progress.data)
    except RehearsalFailed as error:
        if error.failure.traceback:
            say_on_stderr(error.failure.traceback.rstrip())
        if json:
            say_json({"error": error.failure.as_json()})
        raise
    if json:
        say_json(found)
    elif job.script is not None:
        _print_script(found)
    else:
        _print(found)


def _print_script(found: dict[str, Any]) -> None:
    from velodrome.cli.safe_console import SafeConsole
    from velodrome.judge.estimate import in_words
    from velodrome.run.script_trial import BY_ITSELF

    console = SafeConsole(markup=False)
    workers = f"{found['workers']} worker{'' if found['workers'] == 1 else 's'}"
    ended = "it ended by itself" if found["ended"] == BY_ITSELF else f"ended {found['ended']}"
    lines = [f"{found['script']}, {found['engine']}, {workers}: {ended}, {found['seconds']:.1f} s in all"]
    pace = [f"start-up {found['startup_seconds']:.1f} s" if found["startup_seconds"] is not None else "",
            f"{found['steps']:,} steps" if found["steps"] else "",
            f"{found['steps_per_second']:,.1f} steps/s" if found["steps_per_second"] else "",
            f"{found['examples_per_second']:,.0f} examples/s" if found["examples_per_second"] else ""]
    lines += [", ".join(filter(None, pace))]
    reported = [f"{part} {name} {'not finite' if value is None else format(value, '.4g')}"
                for part, figures in found["figures"].items() for name, value in figures.items()]
    lines += [f"reported: {', '.join(reported)}" if reported else "it reported no figures: call velodrome.log in it"]
    if found.get("read"):
        lines += [f"to read a figure from what it printed: {found['read']}"]
    if found["expected_seconds"] is not None:
        lines += [f"the whole job takes about {in_words(found['expected_seconds'])} at this pace"]
    elif found["ended"] != BY_ITSELF:
        lines += ["how long the whole job takes is unknown: velodrome.log(total_epochs=…) in it says how much there is"]
    written = f" ({', '.join(found['written'])})" if found["written"] else ""
    lines += [f"it ran in a copy of this folder, which is removed with what it wrote there{written}"]
    lines += [f"left out of the copy: {', '.join(found['left_out'])}"] if found["left_out"] else []
    for line in (*filter(None, lines), *(f"warning: {warning}" for warning in found["warnings"])):
        console.print(line, soft_wrap=True)


def _print(found: dict[str, Any]) -> None:
    from velodrome.cli.safe_console import SafeConsole
    from velodrome.judge.estimate import in_words

    console = SafeConsole(markup=False)
    console.print(
        f"{found['model']} on {found['dataset']}, {found['engine']}, {found['task']}: {found['parameters']:,} "
        f"parameters; a step of {found['batch']:,} examples took {found['step_seconds'] * 1e3:,.1f} ms", soft_wrap=True,
    )
    console.print(f"the whole job takes about {in_words(found['seconds'])} at this pace", soft_wrap=True)
    if found["layers"]:
        _print_layers(console, found["layers"])
    _print_memory(console, found["memory"])
    _print_strategies(console, found)
    for warning in found["warnings"]:
        console.print(f"warning: {warning}", soft_wrap=True)


def _print_layers(console: SafeConsole, layers: list[dict[str, Any]]) -> None:
    from velodrome.cli.tables import print_table

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
    from velodrome.printable import bytes_text

    parts = [f"{what} {bytes_text(memory[name] or 0)}" for name, what in _MEMORY.items() if memory[name]]
    console.print(f"memory of one process, besides the framework: {', '.join(parts)}", soft_wrap=True)


def _print_strategies(console: SafeConsole, found: dict[str, Any]) -> None:
    from velodrome.cli.tables import print_table
    from velodrome.printable import bytes_text

    size = found["memory"]["gradient_bytes"]
    console.print(f"\nexpected traffic per worker and step, for G = {bytes_text(size)} of gradients:", soft_wrap=True)
    table = _table("strategy", "workers", "one host", "several hosts", "formula, or why it would be refused")
    for row in found["strategies"]:
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

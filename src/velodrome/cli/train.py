"""Commands that run one job: `velodrome train`, `resume` and `attach`, and its result as a table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from velodrome.cli import completion
from velodrome.cli.console import JobProgress, error_console, show_failure
from velodrome.cli.options import (
    JobFile,
    JobMirror,
    Json,
    Mirror,
    Name,
    On,
    Place,
    Runs,
    TrustCode,
    asking,
    command_on,
    job_from,
    tell_code,
    where,
    with_job_options,
)
from velodrome.cli.output import SafeConsole, complain, print_table, say, say_json
from velodrome.clusters import Where, launcher_named, living
from velodrome.errors import VelodromeError, shown
from velodrome.events.result import FaultRecord
from velodrome.job.result import Result
from velodrome.judge.conditions import emulation_lines, host_lines, load_note
from velodrome.judge.configuration import implementation_lines
from velodrome.run.attempt import JobFailed
from velodrome.run.store import Store
from velodrome.tasks.registry import task_of_result

Unfinished = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Name of the run, as `velodrome runs list` shows it.",
                   autocompletion=completion.unfinished),
]


Artifacts = Annotated[
    str | None,
    typer.Option("--artifacts", metavar="URL", help="Copy the run (model, checkpoints, TensorBoard logs, result) to "
                 "URL/NAME after training: s3://bucket/path, hdfs://host:port/path or a folder. `velodrome serve "
                 "URL/NAME` serves it."),
]


@with_job_options
def train_command(
    file: JobFile = None, name: Name = None, runs: Runs = Path("runs"), on: On = None, place: Place = None,
    mirror: JobMirror = None, artifacts: Artifacts = None, trust_code: TrustCode = None, json: Json = False, *,
    fields: dict[str, Any],
) -> None:
    """Train one model with one strategy, and measure it.

    Examples:

    `velodrome train --dataset digits`

    `velodrome train --dataset digits --engine torch --strategy ddp --workers 2`

    `velodrome train --dataset mnist --model dense-300-100 --engine tensorflow --strategy parameter-server --workers 2 --servers 1`

    `velodrome train job.yaml --seed 7 --json`

    `velodrome train --script train.py --script-args "--lr 0.1 --batch-size {64/workers}" --workers 2`

    Exit codes: 0 finished, 1 the run failed, 2 the request is not valid, 130 Ctrl-C.
    """  # noqa: E501
    from velodrome.api.train import train

    job = job_from(file, fields, trust_code, on)
    target = where(on, place, job)
    run_visibly(lambda progress: train(
        job, name=name, runs=runs, on=target, mirror=mirror, on_event=progress.event, on_start=progress.begin,
        on_download=progress.data, artifacts=artifacts,
    ), runs, on=target, as_json=json)
    if artifacts and not json:
        say(f"its artifacts are at {artifacts.rstrip('/')}/…: `velodrome serve` takes that address")


def resume_command(
    run: Unfinished,
    runs: Runs = Path("runs"),
    on: On = None,
    place: Place = None,
    mirror: Mirror = None,
    trust_code: TrustCode = None,
    json: Json = False,
) -> None:
    """Continue an interrupted or failed run from its newest checkpoint.

    Synchronous strategies end with the same weights as an uninterrupted run.

    Example: `velodrome resume torch-ddp-2w-digits-dense-128-128b-261116-101500`
    """
    from velodrome.api.train import admit, resume
    from velodrome.run.store import Store
    from velodrome.run.trust import code_of

    store, launched = Store(runs), on is None
    job, names = asking(lambda names: (admit(run, store, names, launched=launched), names), trust_code)
    tell_code(f"run {run!r}", code_of(job, launched=launched))
    target = where(on, place, job)
    run_visibly(lambda progress: resume(
        run, runs=runs, on=target, mirror=mirror, trust_code=names, on_event=progress.event, on_start=progress.begin
    ), runs, on=target, as_json=json)


def attach_command(
    run: Unfinished,
    runs: Runs = Path("runs"),
    trust_code: TrustCode = None,
    json: Json = False,
) -> None:
    """Take over a run on Slurm whose command was killed while its job kept running.

    No event is lost. Ctrl-C cancels the job, as with `velodrome train`.

    Example: `velodrome attach torch-ddp-2w-digits-dense-128-128b-261116-101500`
    """
    from velodrome.api.train import admit, attach
    from velodrome.run.store import Store

    _, names = asking(lambda names: (admit(run, Store(runs), names, launched=True), names), trust_code)
    run_visibly(lambda progress: attach(
        run, runs=runs, trust_code=names, on_event=progress.event, on_start=progress.begin
    ), runs, on="local", as_json=json)


def mention_interrupted(store: Store) -> None:
    """Print how to resume runs whose controller was killed, or to attach to those that run on without it."""
    # Whether the file exists is enough for the many that ended; only the others are opened.
    without = [run for run in store.runs() if not (run.path / "result.json").exists()]
    names = [run.name for run in without if run.status() == "interrupted"]
    if not names:
        return
    newest, more = store.path / names[-1], f" and {len(names) - 1} more" if len(names) > 1 else ""
    alive = None
    with suppress(VelodromeError):  # not now: the command that resumes it says what is wrong
        alive = living(newest)
    how_to_fix = f"`{command_on('resume', newest)}` resumes it"
    if alive is not None:
        how_to_fix = f"it is still running as {alive}, and `{command_on('attach', newest)}` takes it over"
    error_console.print(f"run {names[-1]}{more} was interrupted: {how_to_fix}", soft_wrap=True, markup=False)


def run_visibly(go: Callable[[JobProgress], dict[str, Any]], runs: Path, *, on: Where, as_json: bool) -> None:
    """Run a job with progress on stderr and its result on stdout."""
    interactive = launcher_named(on).interactive
    mention_interrupted(Store(runs))
    progress = JobProgress(live=not interactive)
    try:
        result = go(progress)
    except JobFailed as error:
        progress.end()
        show_failure(error)
        if as_json:
            say_json(error.result.as_json())
        raise
    except (KeyboardInterrupt, SystemExit):
        progress.end()
        if progress.run is not None:
            kept = any(progress.run.path.glob("checkpoints/*.safetensors"))
            where = "from its newest checkpoint" if kept else "from the beginning: it has no checkpoint yet"
            complain(f"`{command_on('resume', progress.run.path)}` continues this run {where}")
        raise
    finally:
        progress.end()
    if as_json:
        say_json(result)
    else:
        print_summary(result)


def print_summary(printed: dict[str, Any]) -> None:
    """Print a finished run at a glance, from the object that `--json` prints."""
    result = Result.model_validate(printed)
    table = summary(result)
    console = SafeConsole(markup=False)
    console.print(result.run, style="bold", soft_wrap=True)
    print_table(console, table)
    # Not in the table, so that a long path can be copied whatever the width of the terminal is.
    console.print(f"stored in {result.path}", soft_wrap=True)


def summary(result: Result) -> Table:
    """The numbers of a run, a row each."""
    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    seconds, rate = result.seconds, result.throughput
    if result.test is not None:
        task, scores = task_of_result(result), result.test.as_json()
        for metric in task.metrics_of(scores):
            value = result.test.value(metric.name)
            text = "not finite" if value is None else metric.text(value)
            table.add_row(f"test {metric.name}", f"{text}  ({task.amount(scores)})" if metric is task.metric else text)
    if lines := implementation_lines(result):
        table.add_row("implementation", "\n".join(lines))
    if pair := _most_confused(result.confusion, result.class_names):
        table.add_row("most confused", pair)
    if result.parameters is not None:
        table.add_row("parameters", f"{result.parameters:,}")
    parts = {"start-up": seconds.startup, "training": seconds.train, "evaluation": seconds.evaluate,
             "total": seconds.total}
    table.add_row("seconds", ", ".join(f"{name} {spent:.1f}" for name, spent in parts.items() if spent is not None))
    if rate.examples_per_second:
        batches = "" if rate.batches_per_second is None else f"{rate.batches_per_second:,.1f} batches/s "
        table.add_row("throughput", f"{rate.examples_per_second:,.0f} examples/s, {batches}"
                                    f"(first {rate.warmup_steps} steps left out)")
    if result.not_reported:
        table.add_row("not reported", "\n".join(result.not_reported))
    if result.staleness is not None:
        lead = "" if result.staleness.lead is None else f"; a worker at most {result.staleness.lead} steps ahead"
        table.add_row("staleness", f"mean {result.staleness.mean:.2f}, at most {result.staleness.max:g} updates{lead}")
    for node in result.nodes:
        cpu, memory, network = node.cpu_percent, node.memory_bytes.max, node.network_bytes
        if cpu.mean is not None and cpu.max is not None and memory is not None:
            table.add_row(
                f"{node.role} {node.rank}", f"CPU {cpu.mean:.0f} % (max {cpu.max:.0f}), "
                f"memory {memory / 2**20:,.0f} MiB, network in {network.inbound / 2**20:.1f} / out "
                f"{network.out / 2**20:.1f} / loopback {network.loopback / 2**20:.1f} MiB"
            )
    if emulation := emulation_lines(result.cluster):
        table.add_row("emulation", "\n".join(emulation))
    if result.faults:
        table.add_row("faults", "\n".join(map(_fault_line, result.faults)))
    if note := load_note([result]):
        used = note.removeprefix("other programs ")
        table.add_row(Text("other programs", style="yellow"), f"{used}: repeat the run on an idle machine")
    if hosts := host_lines(result):
        table.add_row("hosts", "\n".join(hosts))
    return table


def _fault_line(fault: FaultRecord) -> str:
    end = f" to {fault.end:.1f}" if fault.end is not None else ""
    return f"{shown(fault.fault)}: {fault.host}, second {fault.start:.1f}{end} of the run"


def _most_confused(confusion: list[list[int]] | None, names: list[str] | None) -> str | None:
    """The most frequent confusion of two classes."""
    pairs = [
        (count, true, taken) for true, row in enumerate(confusion or []) for taken, count in enumerate(row)
        if true != taken and count
    ]
    if not pairs or confusion is None or any(len(row) != len(confusion) for row in confusion):
        return None
    count, true, taken = max(pairs, key=lambda pair: pair[0])
    named = names if names and len(names) == len(confusion) else [f"class {place}" for place in range(len(confusion))]
    return f"{shown(named[true])} predicted as {shown(named[taken])}: {count:,} of {sum(confusion[true]):,} times"

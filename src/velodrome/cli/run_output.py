"""A run on the terminal, from its progress to its result as a table, and how one failed or was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from velodrome.cli.console import JobProgress, error_console
from velodrome.cli.options import command_on
from velodrome.cli.output import complain, say_json, say_on_stderr
from velodrome.cli.tables import SafeConsole, print_table
from velodrome.clusters.registry import Where, launcher_named, living
from velodrome.errors import VelodromeError
from velodrome.events.result import FaultRecord
from velodrome.job.result import Result
from velodrome.judge.conditions import emulation_lines, host_lines, load_note
from velodrome.judge.configuration import implementation_lines
from velodrome.printable import shown
from velodrome.run.attempt import JobFailed
from velodrome.run.store import Store
from velodrome.tasks.registry import task_of_result


def show_failure(error: JobFailed) -> None:
    """Print the user's traceback or the stack of the stalled rank; the message itself is printed with the exit code."""
    failure = error.failure
    if failure.traceback:
        say_on_stderr(failure.traceback.rstrip())
    if failure.stack:
        say_on_stderr(f"stack of {failure.role} {failure.rank}:\n{failure.stack}")
    say_on_stderr(f"details are stored in {error.result.path}")


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
    way_out = f"`{command_on('resume', newest)}` resumes it"
    if alive is not None:
        way_out = f"it runs on as {alive}, and `{command_on('attach', newest)}` takes it over"
    error_console.print(f"run {names[-1]}{more} was interrupted: {way_out}", soft_wrap=True, markup=False)


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
        table.add_row("staleness", f"mean {result.staleness.mean:.2f}, at most {result.staleness.max}")
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

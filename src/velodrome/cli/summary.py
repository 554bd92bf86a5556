"""A finished run as a table for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from velodrome.cli.tables import SafeConsole, print_table
from velodrome.judge.conditions import emulation_lines, host_lines, load_note
from velodrome.judge.configuration import implementation_lines
from velodrome.printable import shown
from velodrome.tasks.registry import task_of_result


def print_summary(result: dict[str, Any]) -> None:
    """Print a finished run at a glance."""
    table = summary(result)
    console = SafeConsole(markup=False)
    console.print(str(result["run"]), style="bold", soft_wrap=True)
    print_table(console, table)
    # Not in the table, so that a long path can be copied whatever the width of the terminal is.
    console.print(f"stored in {result['path']}", soft_wrap=True)


def summary(result: dict[str, Any]) -> Table:
    """The numbers of a run, a row each."""
    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    test, seconds, rate = result["test"], result["seconds"], result["throughput"]
    if test:
        task = task_of_result(result)
        for metric in task.metrics_of(test):
            value = test.get(metric.name)
            shown = "not finite" if value is None else metric.text(value)
            table.add_row(f"test {metric.name}", f"{shown}  ({task.amount(test)})" if metric is task.metric else shown)
    if lines := implementation_lines(result):
        table.add_row("implementation", "\n".join(lines))
    if pair := _most_confused(result.get("confusion"), result.get("class_names")):
        table.add_row("most confused", pair)
    if result.get("parameters") is not None:
        table.add_row("parameters", f"{result['parameters']:,}")
    names = {"startup": "start-up", "train": "training", "evaluate": "evaluation", "total": "total"}
    table.add_row("seconds", ", ".join(
        f"{words} {seconds[name]:.1f}" for name, words in names.items() if seconds[name] is not None
    ))
    if rate["examples_per_second"]:
        batches = rate["batches_per_second"]
        table.add_row(
            "throughput", f"{rate['examples_per_second']:,.0f} examples/s, "
            f"{f'{batches:,.1f} batches/s ' if batches is not None else ''}"
            f"(first {rate.get('warmup_steps', 0)} steps left out)"
        )
    if missing := result.get("not_reported"):
        table.add_row("not reported", "\n".join(missing))
    if "staleness" in result:
        table.add_row("staleness", f"mean {result['staleness']['mean']:.2f}, at most {result['staleness']['max']}")
    for node in result["nodes"]:
        cpu, memory, network = node["cpu_percent"], node["memory_bytes"], node["network_bytes"]
        if not {None} & {cpu.get("mean"), cpu.get("max"), memory.get("max")}:
            table.add_row(
                f"{node['role']} {node['rank']}", f"CPU {cpu['mean']:.0f} % (max {cpu['max']:.0f}), "
                f"memory {memory['max'] / 2**20:,.0f} MiB, network in {network.get('in', 0) / 2**20:.1f} / out "
                f"{network['out'] / 2**20:.1f} / loopback {network['loopback'] / 2**20:.1f} MiB"
            )
    if emulation := emulation_lines(result):
        table.add_row("emulation", "\n".join(emulation))
    if faults := result.get("faults"):
        table.add_row("faults", "\n".join(_fault_line(fault) for fault in faults))
    if note := load_note([result]):
        used = note.removeprefix("other programs ")
        table.add_row(Text("other programs", style="yellow"), f"{used}: repeat the run on an idle machine")
    if hosts := host_lines(result):
        table.add_row("hosts", "\n".join(hosts))
    return table


def _fault_line(fault: dict[str, Any]) -> str:
    end = f" to {fault['end']:.1f}" if fault.get("end") is not None else ""
    return f"{shown(fault['fault'])}: {fault['host']}, second {fault['start']:.1f}{end} of the run"


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

"""A study as a table for the terminal, published figures above ours, and what differs as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from velodrome.studies.outcome import QUANTITIES, FigureComparison, quantities_of
from velodrome.studies.plan import StudyPlan, size_of


def plan_lines(plan: StudyPlan) -> list[str]:
    """What cannot run here and what was reduced, a sentence each."""
    lines = [f"missing for {_counted(count)}: {reason}" for reason, count in plan.missing.items()]
    lines += [f"reduced: {reduction}" for reduction in plan.reductions]
    if plan.left_out:
        lines.append(f"left out at scale {plan.scale}: {_counted(plan.left_out)}")
    return [*lines, *([plan.data] if plan.data else [])]


def _counted(count: int) -> str:
    return f"{count} configuration{'' if count == 1 else 's'}"


def differences(plan: StudyPlan) -> list[str]:
    """What differs from the published study, a sentence each."""
    lines = [f"Machines: published {plan.study.machines}; ours {plan.site.machines}."]
    changes = Counter(change for setting in plan.settings for change in setting.changes)
    if changes:
        ran = sum(setting.ours is not None for setting in plan.settings)
        changed = [change if count == ran else f"{change} (in {count} of {ran})" for change, count in changes.items()]
        lines.append(f"Scale {plan.scale}: {'; '.join(changed)}.")
    lines += [f"{note[0].upper()}{note[1:]}." for note in plan.study.notes]
    return [*lines, f"Source of the published figures: {plan.study.source}."]


def comparison(plan: StudyPlan, rows: Sequence[FigureComparison], *, ours: bool) -> Table:
    """A row for each configuration, published figures above ours, labelled by the fields that differ between rows."""
    names = quantities_of(plan.study) if ours or plan.study.figures else []
    fields = [field for field in _FIELDS if len({_FIELDS[field](row.setting.published) for row in rows}) > 1]
    same = ", ".join(_FIELDS[field](rows[0].setting.published) for field in _FIELDS if field not in fields)
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left",
        title=": ".join(filter(None, [plan.study.name, escape(same)]))
        + (f"; ours at scale {plan.scale}" if ours else ""),
    )
    table.add_column("configuration")
    for name in names:
        table.add_column(QUANTITIES[name].heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    seen: list[object] = []
    without = 0
    for row in rows:
        # No published figures and none of ours: `plan_lines` reports what is missing or reduced.
        if not row.published and ours and (row.setting.missing or row.setting.ours in seen):
            without += 1
            continue
        label = escape(" ".join(_FIELDS[field](row.setting.published) for field in fields) or same)
        lines = [[f"[bold]{label}[/bold]" + (" (not in the study)" if row.setting.added else ""), *([""] * len(names))]]
        if row.published:
            lines.append(["  published", *(_cell(name, row.published.get(name)) for name in names)])
        if row.setting.missing or (ours and row.setting.ours in seen):
            lines.append([f"  [yellow]{_state(row, seen)}[/yellow]", *([""] * len(names))])
        elif ours:
            lines.append([f"  {_state(row, seen)}", *(_cell(name, row.ours.get(name)) for name in names)])
        seen.append(row.setting.ours)
        for line in lines:
            table.add_row(*line)
    if without:
        table.add_row(f"[yellow]and {_counted(without)} without any figures[/yellow]", *([""] * len(names)))
    return table


_FIELDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "data": lambda fields: str(fields["dataset"]),
    "engine": lambda fields: f"{fields['engine']} ({framework})" if (framework := fields.get("framework"))
    else str(fields["engine"]),
    "strategy": lambda fields: str(fields["strategy"]),
    "size": size_of,
    "batch": lambda fields: f"batch {fields['batch_size']}",
    "epochs": lambda fields: f"{fields['epochs']} epochs",
}


def _state(row: FigureComparison, seen: Sequence[object]) -> str:
    """The label of our row below a published one."""
    setting = row.setting
    if setting.ours is None:
        return "not available here"
    if setting.ours in seen:
        return f"ours is the run with {size_of(setting.ours)} above"
    smaller = size_of(setting.ours) != size_of(setting.published)
    return "ours" + (f" ({size_of(setting.ours)})" if smaller else "")


def _cell(name: str, value: float | None) -> str:
    return "–" if value is None else format(value, QUANTITIES[name].form)

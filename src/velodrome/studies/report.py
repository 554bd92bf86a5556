"""What the report of a study's race has besides: published figures beside ours, curves, and the claims."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from velodrome.errors import VelodromeError
from velodrome.reporting.document import Report, make_report
from velodrome.reporting.figures import COLOURS, MARKERS, Picture, drawing, legend_below, new_figure
from velodrome.reporting.load import load_race
from velodrome.reporting.series import RunSeries, totals
from velodrome.reporting.tables import ABSENT, Cell, Column, Table
from velodrome.studies.batches import batch_pictures
from velodrome.studies.claims import Finding, findings
from velodrome.studies.format import Extent, Study
from velodrome.studies.outcome import FigureComparison, compare_figures
from velodrome.studies.plan import StudyPlan
from velodrome.studies.quantities import quantity_named
from velodrome.studies.record import StudyRecord, hosts_cores
from velodrome.studies.wording import differences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

#: Curves of a panel, and panels of a figure, that can be told apart.
_MOST_CURVES, _COLUMNS = 6, 2


def with_study(report: Report) -> Report:
    """The report of a race with what was published, if it is the race of a study; as it is otherwise."""
    record = StudyRecord.read(report.record.path)
    if record is None:
        return report
    plan = record.plan()
    cores = hosts_cores(report.record.results) or record.cores
    compared = [_with_extents(each, report.series, cores) for each in compare_figures(plan, report.rows, cores)]
    judged = findings(plan, report.rows, cores)
    tables = [claims_table(judged), figures_table(plan, compared)]
    return replace(
        report, published=tuple(table for table in tables if table is not None),
        notes=(*differences(plan), *report.notes), more_pictures=partial(pictures, plan.study, compared),
        more_files={"published": to_csv(compared, judged)},
    )


def published_tables(race: Path) -> tuple[Table, ...]:
    """The claims of a study's race, and what was published beside ours, as they are now; none for other races."""
    if StudyRecord.read(race) is None:
        return ()
    try:
        return with_study(make_report(load_race(race.parent, race.name))).published
    except VelodromeError:  # nothing is finished yet, or a run cannot be read
        return ()


def _with_extents(compared: FigureComparison, series: Mapping[str, RunSeries], cores: int) -> FigureComparison:
    """The same with our minimum, mean and maximum over time, of all processes together."""
    if compared.row is None or not compared.published_extents or compared.row.name not in series:
        return compared
    sums = totals(series[compared.row.name])
    ours: dict[str, Extent] = {}
    for name, (counted, scale) in {"cpu": ("cpu_percent", cores), "memory": ("memory_bytes", 1e9),
                                   "inbound_rate": ("inbound_rate", 1e6)}.items():
        if name in compared.published_extents and (total := sums.get(counted)) is not None:
            ours[name] = Extent(min=total.low / scale, mean=total.mean / scale, max=total.high / scale)
    return replace(compared, our_extents=ours)


def claims_table(judged: Sequence[Finding]) -> Table | None:
    """Every claim with its place and verdict, what our runs refute first."""
    if not judged:
        return None
    rows = [
        (Cell(finding.claim.text), Cell(finding.claim.place), Cell(finding.verdict),
         Cell("; ".join([finding.why, *(f"what could explain it: {each}" for each in finding.explanations)])))
        for finding in judged
    ]
    columns = tuple(Column(name, numeric=False) for name in ("claim", "place", "verdict", "our runs"))
    note = ("Judged by all runs together with the error rate of a verdict: at most one study in twenty says anything "
            "false. Claims that our runs refute come first.")
    return Table("claims", "Published claims", note, columns, tuple(rows))


def figures_table(plan: StudyPlan, compared: Sequence[FigureComparison]) -> Table | None:
    """A row for each published number, with ours, the difference, and whether it is within the noise."""
    rows = []
    for each in compared:
        for name, published in each.published.items():
            quantity, ours, difference = quantity_named(name), each.ours.get(name), each.difference(name)
            noise = each.within_noise(name)
            rows.append((
                Cell(each.setting.label), Cell(quantity.heading),
                Cell(format(published, quantity.form), _over_time(each.published_extents.get(name), quantity.form),
                     value=published),
                Cell(ABSENT if ours is None else format(ours, quantity.form),
                     _over_time(each.our_extents.get(name), quantity.form), value=ours),
                Cell(ABSENT if difference is None else format(difference, f"+{quantity.form}"), value=difference),
                Cell(ABSENT if difference is None else "not known" if noise is None else "yes" if noise else "no"),
                Cell("; ".join(each.places)), Cell(each.setting.missing or "; ".join(each.setting.changes) or ABSENT),
            ))
    if not rows:
        return None
    columns = (
        Column("configuration", numeric=False), Column("quantity", numeric=False), Column("published"), Column("ours"),
        Column("difference"), Column("within the noise", numeric=False), Column("place", numeric=False),
        Column("differs", numeric=False),
    )
    note = ("Small: minimum and maximum over the time of a run. Within the noise is what one further run of ours may "
            "show: 95 % of runs with other seeds; of a single run, what two finite test sets explain.")
    return Table("published", "Published figures and ours", note, columns, tuple(rows))


def _over_time(extent: Extent | None, form: str) -> str:
    return "" if extent is None else f"{format(extent.min, form)} to {format(extent.max, form)}"


def to_csv(compared: Sequence[FigureComparison], judged: Sequence[Finding]) -> str:
    """Published numbers, those of every epoch, and claims: a line for each."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["configuration", "quantity", "epoch", "published", "published_min", "published_max", "ours",
                     "ours_min", "ours_max", "difference", "within_noise", "place", "verdict", "why", "differs"])
    for each in compared:
        place, differs = "; ".join(each.places), "; ".join(each.setting.changes)
        for name, published in each.published.items():
            theirs, mine = each.published_extents.get(name), each.our_extents.get(name)
            writer.writerow([
                each.setting.label, name, "", published, *((theirs.min, theirs.max) if theirs else ("", "")),
                each.ours.get(name), *((mine.min, mine.max) if mine else ("", "")), each.difference(name),
                each.within_noise(name), place, "", "", differs,
            ])
        for name, values in each.published_epochs.items():
            ours: Sequence[float | None] = each.our_epochs.get(name, ())
            for epoch, (published, measured) in enumerate(zip_longest(values, ours[:len(values)]), start=1):
                difference = None if measured is None else measured - published
                writer.writerow([each.setting.label, name, epoch, published, "", "", measured, "", "", difference, "",
                                 place, "", "", differs])
    for finding in judged:
        writer.writerow([finding.claim.text, "claim", *[""] * 9, finding.claim.place, finding.verdict, finding.why, ""])
    return stream.getvalue()


def pictures(study: Study, compared: Sequence[FigureComparison]) -> list[Picture]:
    """Our curves over the published points, a panel for each data set and model, and those over batches."""
    drawn = [each for each in compared if each.published_epochs]
    names = dict.fromkeys(name for each in drawn for name in each.published_epochs)
    over_epochs = [_over_epochs(name, [each for each in drawn if name in each.published_epochs]) for name in names]
    return [*over_epochs, *batch_pictures(study.batches, compared)]


def _over_epochs(name: str, compared: Sequence[FigureComparison]) -> Picture:
    panels: dict[str, list[FigureComparison]] = {}
    for each in compared:
        fields = each.setting.published
        title = ", ".join(str(fields[name]) for name in ("dataset", "model") if name in fields)
        panels.setdefault(title, []).append(each)
    lines = -(-len(panels) // _COLUMNS)
    with drawing():
        figure, axes = new_figure(11, 0.8 + 3.0 * lines, lines, _COLUMNS)
        for place, (title, members) in enumerate(panels.items()):
            panel = axes[place // _COLUMNS][place % _COLUMNS]
            keys = [_draw(panel, name, each, number) for number, each in enumerate(members[:_MOST_CURVES])]
            panel.set_title(title)
            panel.set_xlabel("epoch")
            panel.set_ylabel(name.replace("_", " ", 1))
        for place in range(len(panels), lines * _COLUMNS):
            axes[place // _COLUMNS][place % _COLUMNS].set_visible(False)
        legend_below(figure, keys)
    caption = "Points are published, lines are the mean of our runs of the same configuration."
    words = name.replace("_", " ", 1)
    return Picture(f"published-{name.replace('_', '-')}", f"Published {words} and ours", caption, figure)


def _draw(panel: Axes, name: str, compared: FigureComparison, number: int) -> Line2D:
    """Published points and our line of one configuration; returns the points, for the legend."""
    fields, colour = compared.setting.published, COLOURS[number % len(COLOURS)]
    published, ours = compared.published_epochs[name], compared.our_epochs.get(name, ())
    points = panel.plot(range(1, len(published) + 1), published, MARKERS[number % len(MARKERS)], color=colour,
                        alpha=0.6, linestyle="none", label=f"{fields['strategy']}, batch {fields['batch_size']}")[0]
    # A line needs two points.
    panel.plot(range(1, len(ours) + 1), ours, "" if len(ours) > 1 else "_", color=colour, markersize=12)
    return points

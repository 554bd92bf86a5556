"""Figures beside those of speed: resource use by strategy, by process over time and by phase, shares of a step, and
the confusion matrix of the most accurate configuration of every task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from velodrome.errors import shown
from velodrome.events.fields import RESOURCES
from velodrome.job.result import Result
from velodrome.judge.compare import Row, tasks_of
from velodrome.judge.measures import BY_NAME
from velodrome.reporting.curves import cut, fastest
from velodrome.reporting.figures import COLOURS, INK, STYLES, Picture, bar_words, drawing, new_figure, rest_of
from velodrome.reporting.series import LOOPBACK, NETWORK, FaultSpan, RunSeries, merged, name_of
from velodrome.reporting.tables import ordered

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_BARS = 20
#: Of what is left out, as many are named in a caption; the tables have all.
MOST_NAMED = 20
#: Processes drawn of one run, and runs drawn over time.
MOST_PROCESSES = 12
MOST_RUNS_DRAWN = 6
_PHASES = {
    "import": "#999999", "connect": "#CC79A7", "data": "#56B4E9", "build": "#0072B2", "train": "#009E73",
    "evaluate": "#E69F00", "save": "#D55E00",
}
_SHARES = {"share_compute": "#009E73", "share_wait": "#E69F00", "share_communicate": "#0072B2"}
#: Colour of injected faults.
_FAULT = "#D55E00"
_FAULTS_DRAWN = (" Injected faults (`--fault`) are shaded; a dashed line marks one that is momentary or lasts until "
                 "the end.")


def draw_faults(panel: Axes, faults: Sequence[FaultSpan], *, named: bool) -> None:
    """Mark injected faults, with the name at the beginning of each."""
    for fault in faults:
        if fault.end is None:
            panel.axvline(fault.start, color=_FAULT, linestyle=(0, (4, 2)), linewidth=1.0)
        else:
            panel.axvspan(fault.start, fault.end, color=_FAULT, alpha=0.18, linewidth=0)
        if named:
            panel.annotate(fault.fault, (fault.start, 1.0), xycoords=("data", "axes fraction"), xytext=(2, -2),
                           textcoords="offset points", ha="left", va="top", fontsize=7, color=_FAULT)


def _bars(row: Row) -> str:
    return f"{row.label}, {row.configuration.size} w"


def bars(rows: Sequence[Row]) -> Picture | None:
    """Mean CPU, memory and network, by strategy and size, with a colour for each batch size."""
    rows = [row for row in ordered(rows) if "cpu_percent" in row.spreads]
    if not rows:
        return None
    rest = rest_of(rows)
    speed: dict[str, float] = {}
    for row in rows:
        speed[_bars(row)] = max(row.examples_per_second, speed.get(_bars(row), 0.0))
    kept = set(sorted(speed, key=lambda name: -speed[name])[:MOST_BARS])
    groups = list(dict.fromkeys(_bars(row) for row in rows if _bars(row) in kept))
    every = list(dict.fromkeys(rest[row.name] for row in rows))
    kinds = every[: len(COLOURS)]
    panels = (*((resource.name, resource.label) for resource in RESOURCES), ("network_bytes", "network (MiB)"))
    height = 0.8 / len(kinds)
    with drawing():
        inches = 1.2 + 0.3 * len(groups) * (1 + 0.35 * (len(kinds) - 1))
        figure, axes = new_figure(11, inches, 1, len(panels), sharey=True)
        for panel, (name, title) in zip(axes[0], panels, strict=True):
            scale = BY_NAME[name].scale
            for row in rows:
                if _bars(row) not in kept or rest[row.name] not in kinds or name not in row.spreads:
                    continue
                kind = kinds.index(rest[row.name])
                place = groups.index(_bars(row)) + (kind - (len(kinds) - 1) / 2) * height
                value = (row.mean(name) or 0.0) / scale
                panel.barh(place, value, height * 0.9, color=COLOURS[kind])
                if name == "network_bytes" and (looped := row.mean("loopback_bytes")):
                    panel.barh(place, looped / scale, height * 0.9, left=value, color=COLOURS[kind], alpha=0.35)
            panel.set_xlabel(title)
            panel.grid(visible=False, axis="y")
        axes[0][0].set_yticks(range(len(groups)), groups)
        axes[0][0].invert_yaxis()
        if len(kinds) > 1:
            from matplotlib.patches import Patch

            handles = [Patch(color=COLOURS[place], label=kind) for place, kind in enumerate(kinds)]
            figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    caption = ("Means over the run, summed over processes (CPU, memory) or hosts (network, in and out); the lighter "
               "part of network is loopback. Medians of the runs; w = workers, ps = parameter servers."
               + cut(len(groups), len({_bars(row) for row in rows}), "strategies and sizes")
               + _without_colour(every[len(kinds):]))
    return Picture("resources", "CPU, memory and network", caption, figure)


def _without_colour(kinds: Sequence[str]) -> str:
    """Which configurations are not drawn because there are too few colours."""
    if not kinds:
        return ""
    more = f"; and {len(kinds) - MOST_NAMED} more" if len(kinds) > MOST_NAMED else ""
    return (f" There are {len(COLOURS)} colours, so {len(kinds)} {'kind is' if len(kinds) == 1 else 'kinds are'} not "
            f"drawn: {'; '.join(kinds[:MOST_NAMED])}{more}.")


def _chosen(rows: Sequence[Row], series: Mapping[str, RunSeries], first: Sequence[str]) -> list[Row]:
    """The runs that are drawn over time: those that the verdict names, then the fastest of each strategy."""
    there = [row for row in rows if row.name in series]
    picked = {row.name: row for name in first for row in there if row.name == name}
    for row in sorted(there, key=lambda row: -row.examples_per_second):
        if row.label not in {other.label for other in picked.values()}:
            picked.setdefault(row.name, row)
    return list(picked.values())[:MOST_RUNS_DRAWN]


def node_curves(rows: Sequence[Row], series: Mapping[str, RunSeries], first: Sequence[str]) -> Picture | None:
    """CPU, memory and network of every process over time, a line of panels for each chosen run."""
    chosen = [row for row in _chosen(rows, series, first) if any(s.seconds for s in series[row.name].samples.values())]
    if not chosen:
        return None
    columns = (*RESOURCES, NETWORK)
    cut_off = False
    with drawing():
        figure, axes = new_figure(11, 0.4 + 2.0 * len(chosen), len(chosen), len(columns))
        for line, row in zip(axes, chosen, strict=True):
            sampled = [item for item in series[row.name].samples.items() if item[1].seconds]
            cut_off |= len(sampled) > MOST_PROCESSES
            for place, (process, samples) in enumerate(sampled[:MOST_PROCESSES]):
                look: dict[str, Any] = {
                    "color": COLOURS[place % len(COLOURS)], "linestyle": STYLES[place // len(COLOURS) % len(STYLES)],
                    "marker": "." if len(samples.seconds) < 20 else None, "linewidth": 1.2,
                }
                for panel, curve in zip(line, columns, strict=True):
                    values = samples.values[curve.name]
                    if curve is NETWORK:
                        values = [sum(rates) for rates in zip(values, samples.values[LOOPBACK.name], strict=True)]
                    panel.plot(samples.seconds, [value / curve.scale for value in values], label=name_of(process),
                               **look)
            # The name stands above all three panels and must not widen the first: an empty title keeps its room.
            line[0].set_title(" ", fontsize=9)
            line[0].annotate(row.name, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points",
                             fontsize=9, in_layout=False, annotation_clip=False)
            line[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), fontsize=7.5)
            for panel in line:
                panel.set_ylim(0, 1.1 * max(panel.dataLim.ymax, 1e-3))
                panel.set_xlim(left=0)
                draw_faults(panel, series[row.name].faults, named=False)
        for panels, curve in zip(axes.T, columns, strict=True):
            for panel in panels:
                panel.set_ylabel(curve.label, fontsize=8)
        for panel in axes[-1]:
            panel.set_xlabel("time since the run began (s)")
    caption = ("One sample a second of the run with the mean throughput: the configurations that the verdict names, "
               "then the fastest of each strategy. Network is measured per host, loopback included, so processes of "
               "one host show the same values.")
    if any(series[row.name].faults for row in chosen):
        caption += _FAULTS_DRAWN
    if cut_off:
        caption += f" At most {MOST_PROCESSES} processes per run are drawn."
    return Picture("processes", "Resources of every process over time", caption, figure)


def timeline(rows: Sequence[Row], series: Mapping[str, RunSeries], first: Sequence[str]) -> Picture | None:
    """Phases of every process as bars on a common clock, for each chosen run."""
    from matplotlib.patches import Patch

    chosen = [row for row in _chosen(rows, series, first) if any(series[row.name].spans.values())]
    if not chosen:
        return None
    counts = [min(MOST_PROCESSES, len(series[row.name].spans)) for row in chosen]
    longest = max(span.end for row in chosen for spans in series[row.name].spans.values() for span in spans)
    with drawing():
        figure, axes = new_figure(11, 0.8 + sum(0.42 + 0.24 * count for count in counts), len(chosen), 1, sharex=True,
                                  gridspec_kw={"height_ratios": [0.6 + count for count in counts]})
        for panel, row in zip(axes[:, 0], chosen, strict=True):
            drawn = list(series[row.name].spans.items())[:MOST_PROCESSES]
            for place, (_, spans) in enumerate(drawn):
                for phase, colour in _PHASES.items():
                    pieces = merged([span for span in spans if span.phase == phase], longest / 1500)
                    # Narrower bars would be invisible, and training has many phases that short.
                    panel.broken_barh([(s.start, max(s.end - s.start, longest / 1500)) for s in pieces],
                                      (place - 0.38, 0.76), color=colour, linewidth=0)
            panel.set_yticks(range(len(drawn)), [name_of(process) for process, _ in drawn], fontsize=8)
            panel.set_ylim(len(drawn) - 0.4, -0.6)
            panel.set_title(row.name, fontsize=9)
            panel.grid(visible=False, axis="y")
            draw_faults(panel, series[row.name].faults, named=True)
        axes[-1][0].set_xlabel("time since the run began (s)")
        axes[-1][0].set_xlim(left=0)
        used = {span.phase for row in chosen for spans in series[row.name].spans.values() for span in spans}
        figure.legend(handles=[Patch(color=colour, label=phase) for phase, colour in _PHASES.items() if phase in used],
                      loc="outside lower center", ncols=len(_PHASES))
    caption = ("Phases of every process of the same runs. A gap is time outside any phase: waiting to be started, or "
               "serving others.")
    if any(series[row.name].faults for row in chosen):
        caption += _FAULTS_DRAWN
    if any(len(series[row.name].spans) > MOST_PROCESSES for row in chosen):
        caption += f" At most {MOST_PROCESSES} processes per run are drawn."
    return Picture("timeline", "Timeline of phases", caption, figure)


def shares(rows: Sequence[Row]) -> Picture | None:
    """Shares of a step spent computing, waiting and communicating, for runs that report them."""
    reported = [row for row in ordered(rows) if "share_compute" in row.spreads]
    there = fastest(reported, MOST_BARS)
    if not there:
        return None
    with drawing():
        figure, axes = new_figure(11, 1.2 + 0.3 * len(there))
        panel = axes[0][0]
        for place, row in enumerate(there):
            left = 0.0
            for name, colour in _SHARES.items():
                value = 100 * (row.mean(name) or 0.0)
                panel.barh(place, value, 0.75, left=left, color=colour, label=None if place else BY_NAME[name].heading)
                left += value
        panel.set_yticks(range(len(there)), [row.name for row in there])
        panel.invert_yaxis()
        panel.set_xlabel("share of a training step (%)")
        panel.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=3)
    return Picture("shares", "Time per step: computing, waiting, communicating",
                   "Shares of a training step as reported by the engine; means of the runs."
                   + cut(len(there), len(reported)), figure)


#: With more classes cells are too small to see, and with more than the second number counts are too small to read.
MOST_CLASSES, MOST_WRITTEN = 40, 20
MOST_TASKS = 3
#: Of a title, beside the names of the classes.
_LETTERS_PER_INCH = 10


def confusion(rows: Sequence[Row]) -> Picture | None:
    """The confusion matrix, normalized by the true class."""
    best = _best(rows)
    small = [(task, row, table) for task, row, table in best if 2 <= len(table) <= MOST_CLASSES]
    shown = small[:MOST_TASKS]
    if not shown:
        return None
    side = max(3.6, 1.6 + 0.32 * max(len(table) for _, _, table in shown))
    with drawing():
        width = min(11.0, side * len(shown) + 0.8)
        figure, axes = new_figure(width, side + 0.5, 1, len(shown))
        words = bar_words(rows)
        for panel, (task, row, table) in zip(axes[0], shown, strict=True):
            _draw(panel, table, _names(row.representative, len(table)))
            lines = [line for line in (task, row.label, words[row.name]) if line]
            letters = int(_LETTERS_PER_INCH * width / len(shown))
            panel.set_title("\n".join(fill(line, letters) for line in lines), fontsize=8)
    caption = ("Test examples by true class (row) and predicted class (column); the darker, the larger the share of "
               "the true class. One run of the most accurate configuration"
               f"{' of each task' if len(shown) > 1 else ''}.")
    caption += _cut(len(shown), len(best), sum(len(table) > MOST_CLASSES for _, _, table in best))
    return Picture("confusion", "Confusion matrix", caption, figure)


def _cut(shown: int, tasks: int, large: int) -> str:
    """Which tasks are not drawn, and why."""
    if shown == tasks:
        return ""
    why = f"; {large} of them {'has' if large == 1 else 'have'} more than {MOST_CLASSES} classes" if large else ""
    return f" {shown} of {tasks} tasks are drawn{why}."


def _best(rows: Sequence[Row]) -> list[tuple[str, Row, list[list[int]]]]:
    chosen = []
    for task, members in tasks_of(rows).items():
        counted = [row for row in members if _is_square(row) and row.mean("accuracy") is not None]
        if counted:
            best = max(counted, key=lambda row: row.mean("accuracy") or 0.0)
            chosen.append((task, best, best.representative.confusion or []))
    return chosen


def _is_square(row: Row) -> bool:
    """Whether its run recorded a confusion matrix that is square; a file may hold any rows."""
    table = row.representative.confusion
    return table is not None and all(len(cells) == len(table) for cells in table)


def _names(result: Result, classes: int) -> list[str]:
    names = [str(name) for name in result.class_names or ()]
    if len(names) != classes:
        return [str(place) for place in range(classes)]
    # Two dollar signs would make it a formula.
    return [shown(name, 17).replace("$", r"\$") for name in names]


def _draw(panel: Any, table: list[list[int]], names: Sequence[str]) -> None:
    shares = [[cell / max(1, sum(row)) for cell in row] for row in table]
    panel.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    if len(table) <= MOST_WRITTEN:
        # Dark on light also on a dark page, so it is not the ink that follows the page.
        for true, row in enumerate(table):
            for predicted, count in enumerate(row):
                colour = "#ffffff" if shares[true][predicted] > 0.6 else "#20262e"
                if count:
                    panel.text(predicted, true, f"{count:,}", ha="center", va="center", fontsize=7, color=colour)
    wide = max(map(len, names)) > 2
    panel.set_xticks(range(len(names)), names, rotation=90 if wide else 0, fontsize=7.5)
    panel.set_yticks(range(len(names)), names, fontsize=7.5)
    panel.set_xlabel("predicted class")
    panel.set_ylabel("true class")
    panel.tick_params(length=0)
    panel.grid(visible=False)
    for spine in panel.spines.values():
        spine.set_visible(True)
        spine.set_edgecolor(INK)

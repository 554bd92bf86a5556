"""Figures of resource use: by strategy, by process over time, and by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from velodrome.events.fields import RESOURCES
from velodrome.judge.compare import Row
from velodrome.judge.measures import BY_NAME
from velodrome.reporting.curves import cut, fastest, rest_of
from velodrome.reporting.figures import COLOURS, STYLES, Picture, drawing, new_figure
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


#: Of what was broken on purpose.
_FAULT = "#D55E00"
_FAULTS_DRAWN = (" Shaded, or a dashed line where it is one moment or lasts until the end: what was broken on purpose "
                 "(`--fault`).")


def draw_faults(panel: Axes, faults: Sequence[FaultSpan], *, named: bool) -> None:
    """Mark what was broken on purpose; with its name at its beginning."""
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
            found = [item for item in series[row.name].samples.items() if item[1].seconds]
            cut_off |= len(found) > MOST_PROCESSES
            for place, (process, samples) in enumerate(found[:MOST_PROCESSES]):
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
            found = list(series[row.name].spans.items())[:MOST_PROCESSES]
            for place, (_, spans) in enumerate(found):
                for phase, colour in _PHASES.items():
                    pieces = merged([span for span in spans if span.phase == phase], longest / 1500)
                    # Narrower bars would be invisible, and training has many phases that short.
                    panel.broken_barh([(s.start, max(s.end - s.start, longest / 1500)) for s in pieces],
                                      (place - 0.38, 0.76), color=colour, linewidth=0)
            panel.set_yticks(range(len(found)), [name_of(process) for process, _ in found], fontsize=8)
            panel.set_ylim(len(found) - 0.4, -0.6)
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

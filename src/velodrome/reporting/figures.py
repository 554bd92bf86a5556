"""Style and output of figures: colours for colour-blind readers, SVG for pages, files on request.

The figures themselves are in `curves`, `usage` and `confusion`; only that of `velodrome race` is here.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from velodrome import files
from velodrome.judge.compare import Row, tasks_of
from velodrome.judge.configuration import distinguishing_fields, short_forms, varied, words_of
from velodrome.judge.measures import BY_NAME, THROUGHPUT, Measure
from velodrome.judge.phrases import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's palette for colour-blind readers, without yellow and black: each is invisible on one background.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
STYLES: tuple[Any, ...] = (
    "-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 4)), (0, (8, 3)), (0, (2, 3, 6, 3)), (0, (2, 1)),
    (0, (5, 4)), (0, (8, 2, 2, 2)), (0, (1, 1, 1, 1, 1, 4)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d", "8")
#: Text and axes; replaced by the page's text colour, so that figures follow light and dark themes.
INK = "#20262d"
#: The files of every figure: for pages, for slides, and for documents.
FIGURE_FORMS = ("svg", "png", "pdf")
#: More lines than this in a figure cannot be distinguished.
MOST_LINES = 24
#: Tasks whose curves fit into the one picture of a race.
MOST_TASKS_OF_RACE = 4
#: Characters of what stands beside a bar or in the legend.
MOST_WORDS = 56
#: The same in a legend on the right of the data.
_MOST_BESIDE = 40
#: Room in a legend for the drawn line of an entry with its margins, for one letter, and for a line of words, in inches.
_KEY_INCHES, _LETTER_INCHES, _LINE_INCHES = 0.7, 0.085, 0.18


@dataclass(frozen=True)
class Picture:
    """A drawn figure with its file name, title and caption."""

    name: str
    title: str
    caption: str
    figure: Figure


@contextmanager
def drawing() -> Iterator[None]:
    """Draw or save with our style, and restore matplotlib's settings afterwards."""
    import matplotlib as mpl

    with mpl.rc_context({
        "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9, "legend.fontsize": 8, "legend.frameon": False,
        "legend.handlelength": 3.2,
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK, "axes.labelcolor": INK,
        "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.titlecolor": INK, "axes.axisbelow": True,
        "grid.color": INK, "grid.alpha": 0.15, "axes.grid": True, "lines.linewidth": 1.5, "lines.markersize": 4,
        "svg.hashsalt": "velodrome", "svg.fonttype": "path", "axes.titlelocation": "left",
        "pdf.fonttype": 42,  # letters of a PDF can be searched and copied
        # A dollar sign in a model's name is a dollar sign, not a formula.
        "text.parse_math": False, "axes.formatter.use_mathtext": False,
    }):
        yield


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes as an array of rows and columns."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def colours_of(labels: Sequence[str]) -> dict[str, str]:
    return {label: COLOURS[place % len(COLOURS)] for place, label in enumerate(dict.fromkeys(labels))}


def styles_of(names: Sequence[Any]) -> dict[Any, Any]:
    """A line style for each name; after the predefined ones, longer and longer dashes."""
    return {
        name: STYLES[place] if place < len(STYLES) else (0, (2.0 * place, 2, 1, 2))
        for place, name in enumerate(dict.fromkeys(names))
    }


def markers_of(labels: Sequence[str], rests: Sequence[str]) -> dict[tuple[str, str], str]:
    """A marker for each strategy and what else distinguishes its lines.

    Where nothing else does, each strategy has one; otherwise strategies share them, and have others where colours
    repeat.
    """
    labels, rests = list(dict.fromkeys(labels)), list(dict.fromkeys(rests))
    if len(rests) < 2:
        return {(label, rest): MARKERS[place % len(MARKERS)] for place, label in enumerate(labels) for rest in rests}
    return {
        (label, rest): MARKERS[(number + place // len(COLOURS) * len(rests)) % len(MARKERS)]
        for place, label in enumerate(labels) for number, rest in enumerate(rests)
    }


@dataclass(frozen=True)
class Looks:
    """How the configurations of a race look in all of its figures: colour by strategy, line style by workers, marker by
    strategy or by what else differs."""

    colour: Mapping[str, str]
    style: Mapping[int, Any]
    marker: Mapping[tuple[str, str], str]
    #: What else differs within a task, by the row's name.
    rest: Mapping[str, str]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Looks:
        """The looks of all rows of a race, whatever their order."""
        labels = sorted(row.label for row in rows)
        ordered = sorted(rows, key=lambda row: (row.batch_size, row.name))
        rest = {name: words for members in tasks_of(ordered).values() for name, words in rest_of(members).items()}
        return cls(
            colours_of(labels), styles_of(sorted({row.workers for row in rows})),
            markers_of(labels, [rest[row.name] for row in ordered]), rest,
        )

    def marker_of(self, row: Row) -> str:
        return self.marker[row.label, self.rest[row.name]]

    def line(self, row: Row) -> dict[str, Any]:
        return {
            "color": self.colour[row.label], "linestyle": self.style[row.workers], "marker": self.marker_of(row),
        }

    def name_point(self, axes: Axes, row: Row, places: Sequence[float], values: Sequence[Sequence[float]]) -> None:
        """Write the number of workers beside a curve of a single point, which shows no line style."""
        if len(places) == 1 and len(self.style) > 1:
            is_left = list(self.style).index(row.workers) % 2 == 1  # points close together keep theirs apart
            axes.annotate(f"{row.workers} w", (places[0], median(values[0])), xytext=(-5 if is_left else 5, 3),
                          textcoords="offset points", ha="right" if is_left else "left", fontsize=7)

    def keys(self, *, colours: bool = True, workers: bool = True) -> list[Any]:
        """The legend: what colours and markers mean, and line styles if they are drawn."""
        from matplotlib.lines import Line2D

        rests = list(dict.fromkeys(rest for _, rest in self.marker))
        if len(rests) < 2 or len(self.colour) > len(COLOURS):
            handles = [
                Line2D([], [], color=self.colour[label], marker=marker, linestyle="",
                       label=cut(f"{label}, {rest}" if rest else label))
                for (label, rest), marker in self.marker.items()
            ]
        else:
            handles = [Line2D([], [], color=colour, label=label) for label, colour in self.colour.items() if colours]
            first = next(iter(self.colour))
            handles += [Line2D([], [], color=INK, marker=self.marker[first, rest], linestyle="", label=cut(rest))
                      for rest in rests if rest]
        if workers:
            handles += [Line2D([], [], color=INK, linestyle=style, label=counted(count, "worker"))
                      for count, style in self.style.items()]
        return handles[:MOST_LINES]


def legend_below(figure: Figure, handles: Sequence[Any], **options: Any) -> None:
    """A legend below the panels, in as many columns as its longest words leave room for; the figure grows with it."""
    width = figure.get_figwidth()
    for handle in handles:
        handle.set_label(cut(handle.get_label(), int((width - _KEY_INCHES) / _LETTER_INCHES)))
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, int(width / (_KEY_INCHES + _LETTER_INCHES * longest)))
    lines = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + _LINE_INCHES * max(0, lines - 2))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(handles)), **options)


def legend_beside(figure: Figure, handles: Sequence[Any]) -> None:
    """A legend on the right of the panels; the figure grows by its width."""
    for handle in handles:
        handle.set_label(cut(handle.get_label(), _MOST_BESIDE))
    longest = max(len(handle.get_label()) for handle in handles)
    figure.set_figwidth(figure.get_figwidth() + _KEY_INCHES + _LETTER_INCHES * longest)
    figure.legend(handles=handles, loc="outside right center")


def whole_numbers(axes: Axes, values: Sequence[int]) -> None:
    """Ticks at the values that occur, as long as they fit."""
    ticks = sorted(set(values))
    if len(ticks) <= 12:
        axes.set_xticks(ticks, [str(tick) for tick in ticks])


def to_svg(picture: Picture) -> str:
    """The figure as an element for a page: no header, the page's text colour, a description for screen readers."""
    stream = io.StringIO()
    with drawing():
        picture.figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(?<= id=")(?=figure_|axes_|text_|line2d_|patch_|legend_|matplotlib\.)', f"{picture.name}-", text)
    width = re.search(r'width="([0-9.]+)pt"', text)
    text = re.sub(r'(<svg[^>]*?) width="[0-9.]+pt"', r"\1", re.sub(r'(<svg[^>]*?) height="[0-9.]+pt"', r"\1", text))
    natural = float(width[1]) * 4 / 3 if width else 900
    label = f'role="img" aria-label="{escape(picture.title)}" style="width:{natural:.0f}px"'
    return text.replace("<svg", f"<svg {label}", 1).replace(INK, "currentColor")


def save(picture: Picture, folder: Path) -> list[Path]:
    """The figure as SVG, PNG and PDF files, on white."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{picture.name}.{form}" for form in FIGURE_FORMS]
    with drawing():
        for path in paths:
            # Without a date, the same figure is the same file.
            dates = {"CreationDate": None} if path.suffix == ".pdf" else None
            with files.atomic_path(path, shared=True) as making:
                picture.figure.savefig(making, dpi=160, facecolor="white", metadata=dates, format=path.suffix[1:])
    return paths


def race_figure(rows: Sequence[Row], path: Path, title: str) -> Path:
    """Draw the one picture of a race into a file."""
    figure = draw_race(rows, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    with drawing(), files.atomic_path(path, shared=True) as making:
        figure.savefig(making, dpi=130, format="png")
    return path


def draw_race(rows: Sequence[Row], title: str) -> Figure:
    """Throughput by strategy and workers, and accuracy over training time for each task, in one picture; what no run
    reported has no panel."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    from velodrome.reporting.curves import draw_over_time, has_curves

    rows = sorted(rows, key=lambda row: row.label)
    tasks = {task: members for task, members in tasks_of(rows).items() if has_curves(members)}
    shown = list(tasks.items())[:MOST_TASKS_OF_RACE]
    if len(shown) < len(tasks):
        title += f" (curves of {len(shown)} of {len(tasks)} tasks)"
    looks = Looks.of(rows)
    with drawing():
        figure = Figure(figsize=(13, max(4.6, 1.4 + 0.36 * len(rows), 0.6 + 3.0 * len(shown))), layout="constrained")
        grid = figure.add_gridspec(max(1, len(shown)), 2, width_ratios=(1.1, 1))
        figure.suptitle(title, fontsize=13)
        # Models differ in speed by far: each has an axis of its own, where all of them are shown.
        apart = len(shown) > 1 and sum(len(members) for _, members in shown) == len(rows)
        if not apart:
            _draw_bars(figure.add_subplot(grid[:, 0] if shown else grid[:, :]), rows, looks)
        for place, (task, members) in enumerate(shown):
            if apart:
                _draw_bars(bars := figure.add_subplot(grid[place, 0]), members, looks)
                bars.set_title(task)
            panel = figure.add_subplot(grid[place, 1])
            draw_over_time(panel, members, looks)
            panel.set_title(task)
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if shown:
            legend_beside(figure, looks.keys(colours=False))
    return figure


def _differences(rows: Sequence[Row]) -> dict[str, list[str]]:
    """What distinguishes configurations besides strategy and size, by name: `batch 64`."""
    configurations = [row.configuration for row in rows]
    batch = ["batch_size"] if "batch_size" in varied(configurations) else []
    fields, short = [*batch, *distinguishing_fields(configurations)], short_forms(configurations)
    return {row.name: words_of(row.configuration, fields, short) for row in rows}


def rest_of(rows: Sequence[Row]) -> dict[str, str]:
    """What distinguishes configurations of one strategy and number of workers; empty if nothing does."""
    differing = _differences(rows)
    servers = {row.name: [counted(row.servers, "server")] if row.servers > 1 else [] for row in rows}
    return {row.name: ", ".join([*differing[row.name], *servers[row.name]]) for row in rows}


def bar_words(rows: Sequence[Row]) -> dict[str, str]:
    """The label of each bar, by the name of its configuration: everything that distinguishes it from its neighbours."""
    differing = _differences(rows)
    servers = {row.name: [counted(row.servers, "server")] if row.servers else [] for row in rows}
    return {row.name: ", ".join([counted(row.workers, "worker"), *servers[row.name], *differing[row.name]])
            for row in rows}


def _draw_bars(axes: Axes, rows: Sequence[Row], looks: Looks) -> None:
    """A group of bars for each strategy, one for each of its configurations."""
    from matplotlib.ticker import StrMethodFormatter

    from velodrome.reporting.curves import range_of

    measure = rate_of(rows)

    there, workers = {row.label for row in rows}, list(looks.style)
    labels = [label for label in looks.colour if label in there]
    groups = {label: [row for row in rows if row.label == label] for label in labels}
    height = 0.8 / max(len(group) for group in groups.values())
    words = bar_words(rows)
    for number, group in enumerate(groups.values()):
        for slot, row in enumerate(sorted(group, key=lambda row: (row.workers, row.servers, row.batch_size, row.name))):
            place = number + (slot - (len(group) - 1) / 2) * height
            strength = 1.0 if len(workers) == 1 else 0.45 + 0.55 * workers.index(row.workers) / (len(workers) - 1)
            middle, low, high = range_of(row, measure)
            colour = looks.colour[row.label]
            ends = [[middle - low], [high - middle]] if row.runs > 1 else None
            bar = axes.barh(place, middle, height * 0.92, color=colour, alpha=strength, xerr=ends, ecolor=INK,
                            capsize=2.5, error_kw={"elinewidth": 0.9})
            axes.plot(middle, place, marker=looks.marker_of(row), color=colour, markeredgecolor=INK, markersize=5)
            rate = measure.text(middle) if middle else "not reported"
            axes.bar_label(bar, [f" {rate}  ({cut(words[row.name])})"], fontsize=8, padding=3)
    axes.set_yticks(range(len(labels)), [label.replace("/", "\n") for label in labels])
    for tick, label in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_color(looks.colour[label])
        tick.set_fontweight("bold")
    axes.invert_yaxis()
    axes.margins(x=0.3)
    axes.grid(visible=False)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ranges = ": mean and range of the runs" if any(row.runs > 1 for row in rows) else ""
    what = "training throughput (examples/s)" if measure is THROUGHPUT else "time of a whole run (s)"
    axes.set_xlabel(f"{what}{ranges}")


def rate_of(rows: Sequence[Row]) -> Measure:
    """What shows how fast rows are: throughput, or the time of whole runs if no script reported its examples."""
    return THROUGHPUT if any(row.examples_per_second for row in rows) else BY_NAME["total_seconds"]


def cut(words: str, most: int = MOST_WORDS) -> str:
    """Words that fit beside a bar: a race that varies many fields has more of them than a figure has room for."""
    return words if len(words) <= most else f"{words[: most - 1].rstrip(' ,')}…"

"""The report in each of its forms: complete, self-contained, and deaf to what names try to smuggle in."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from synthetic_races import Written, repeated, result, thousand_runs, write_race
from typed_judge import compare
from velodrome.errors import BadRequest, VelodromeError
from velodrome.judge.criteria import Criteria
from velodrome.reporting.curves import over_epochs, over_time
from velodrome.reporting.document import Report, make_pictures, make_report
from velodrome.reporting.figures import INK, Looks, Picture, rest_of, save
from velodrome.reporting.load import load_race
from velodrome.reporting.tables import MOST_NODE_ROWS, view_table
from velodrome.reporting.write import (
    latex_escape,
    markdown_escape,
    nodes_to_csv,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    write_report,
)

EVIL = '$\\bad{$m_1:<script>alert(1)</script>&"|%$#{}\\input{x}^~`**'


class Outline(HTMLParser):
    """Tags that do not close, and whatever would be fetched."""

    _VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self._VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        self.fetched += [value or "" for name, value in attributes
                         if name in ("src", "href", "xlink:href") and not (value or "").startswith("#")]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self._VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def race_results() -> list[dict[str, object]]:
    shares = {"compute": 0.7, "wait": 0.2, "communicate": 0.1}
    return [
        *repeated([100, 102, 98], strategy="single", target="accuracy>=0.7"),
        *repeated([90, 92, 91], workers=1, target="accuracy>=0.7"),
        *repeated([180, 182, 178], workers=2, target="accuracy>=0.7", shares=shares),
        *repeated([50, 51, 52], strategy="parameter-server", engine="tensorflow", workers=2, servers=1,
                  target="accuracy>=0.7", staleness={"mean": 1.0, "max": 3}),
        {**result(status="failed", seed=9, target="accuracy>=0.7"), "test": None,
         "error": {"message": "it <b>broke</b>"}},
    ]


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_race(tmp_path_factory.mktemp("runs"), race_results())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def report(race: Written) -> Report:
    return make_report(load_race(race.runs, race.name))


@pytest.fixture(scope="module")
def pictures(report: Report) -> list[Picture]:
    return make_pictures(report)


@pytest.fixture(scope="module")
def page(report: Report, pictures: list[Picture]) -> str:
    return to_html(report, pictures)


def test_the_page_is_whole_and_fetches_nothing(page: str) -> None:
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.fetched == []
    assert outline.scripts == 1
    assert not re.findall(r"@import|url\((?!#)", page)


def test_commands_in_a_verdict_are_code_and_everything_is_escaped(report: Report) -> None:
    [answer] = report.answers
    said = {"why": f"see `velodrome runs show {EVIL.replace('`', '')}`",
            "next": "run `velodrome <b> & more`, then look",
            "caveats": ("`a\u202eb` is <i>odd</i>", "one ` alone")}
    recommendation = replace(answer.recommendation, **said)  # type: ignore[arg-type]
    page = to_html(replace(report, answers=(replace(answer, recommendation=recommendation),)), [])
    assert "run <code>velodrome &lt;b&gt; &amp; more</code>, then look" in page
    verdict = page[page.index('<section class="verdict'):].partition("</section>")[0]
    assert verdict.count("<code>") == 3
    assert verdict.count("`") == 1
    assert "<script>" not in verdict
    assert "<i>" not in verdict
    assert "\u202e" not in verdict


def test_the_page_begins_with_the_verdict_and_has_every_section_in_order(page: str) -> None:
    found = re.findall(r"<(?:h[1-3]|figcaption)[^>]*>(.*?)</(?:h[1-3]|b)>", page[page.index("<body>"):], re.DOTALL)
    assert [re.sub(r"<.*?>", "", words).strip() for words in found] == [
        "Race made",
        "Verdict by time-to-accuracy",
        "Results",
        "By other objectives",
        "Caveats",
        "Figures",
        "1. Throughput and speedup over workers.",
        "2. Validation accuracy against time.",
        "3. Validation accuracy per epoch.",
        "4. Time per step: computing, waiting, communicating.",
        "5. CPU, memory and network.",
        "6. Resources of every process over time.",
        "7. Timeline of phases.",
        "Tables",
        "torch/ddp with 2 workers compared with the others",
        "Times and batches",
        "Resources, all processes",
        "Resources by process",
        "Runs that did not finish",
        "Configuration and environment",
        "Varied",
        "Common to all runs",
        "Environment",
        "How to reproduce",
    ]
    assert "Use torch/ddp with 2 workers: distributing pays off." in page
    assert page.index("velodrome race race.yaml") > page.index("How to reproduce")
    assert page.count("<figure") == 7
    assert 'class="number best"' in page
    assert "it &lt;b&gt;broke&lt;/b&gt;" in page


def test_figures_are_inline_xml_in_the_pages_own_colour(page: str, pictures: list[Picture]) -> None:
    found = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(found) == len(pictures)
    for text, picture in zip(found, pictures, strict=True):
        assert "currentColor" in text
        assert f'aria-label="{picture.title}"' in text
        ElementTree.fromstring(text)


def test_figures_are_written_as_svg_png_and_pdf(pictures: list[Picture], tmp_path: Path) -> None:
    paths = save(pictures[0], tmp_path / "figures")
    assert [path.suffix for path in paths] == [".svg", ".png", ".pdf"]
    assert paths[0].read_text().startswith("<?xml")
    assert paths[1].read_bytes()[:4] == b"\x89PNG"
    written = paths[2].read_bytes()
    assert written.startswith(b"%PDF-")
    assert save(pictures[0], tmp_path / "again")[2].read_bytes() == written


def assert_aligned(markdown: str) -> None:
    blocks = [block.splitlines() for block in markdown.split("\n\n") if block.startswith("|")]
    assert len(blocks) >= 6
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1


def test_names_cannot_break_out_of_any_form(runs: Path) -> None:
    evil = [{**made, "model": EVIL} for made in (*repeated([1, 2], strategy="single"), *repeated([3, 4], workers=2))]
    write_race(runs, [*evil, *({**made, "model": "plain"} for made in repeated([5, 6], workers=2))])
    report = make_report(load_race(runs, "made"))
    outline = Outline()
    page = to_html(report, make_pictures(report))
    outline.feed(page)
    assert outline.scripts == 1
    assert "<script>alert" not in page
    assert_aligned(to_markdown(report))
    assert not {r"\input", r"\bad"} & set(re.findall(r"\\[a-z]+", to_latex(report)))


def test_escapes_leave_nothing_that_means_something() -> None:
    assert latex_escape("50 % of a_b & {c} – 2×") == r"50 \% of a\_b \& \{c\} -- 2$\times$"
    assert latex_escape("naïve\n☃") == "naïve ?"
    # A document without \usepackage[T1]{fontenc} has no sign for these commands, and stops at them.
    told = latex_escape("".join(map(chr, range(32, 127))))
    assert "''" in told
    for command in ("quotedbl", "guillemot", "guilsingl", "quotesinglbase", "textquotedblbase", "ogonekchar"):
        assert command not in told
    assert markdown_escape("a|b*c<d>\n") == r"a\|b\*c\<d\>"


def test_markdown_has_the_verdict_and_aligned_tables(report: Report) -> None:
    text = to_markdown(report)
    assert "**Verdict:** use torch/ddp with 2 workers" in text
    assert_aligned(text)


def test_csv_holds_unrounded_numbers_and_no_formulas(report: Report) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(report.rows))))
    two = next(line for line in lines if line["strategy"] == "ddp" and line["workers"] == "2")
    assert (round(float(two["examples_per_second"]), 3), float(two["examples_per_second_min"])) == (179.993, 178.0)
    assert float(two["speedup_low"]) > 1.5
    assert float(two["memory_bytes"]) == 2 * 2**28
    processes = list(csv.DictReader(io.StringIO(nodes_to_csv(report))))
    assert len(processes) == 1 + 1 + 2 + 4
    assert {line["process"] for line in processes} >= {"server 0", "chief 0", "worker 1"}


def test_a_cell_that_looks_like_a_formula_stays_text(runs: Path) -> None:
    write_race(runs, [{**made, "engine": "=cmd()"} for made in repeated([1, 2])])
    assert "'=cmd()" in to_csv(make_report(load_race(runs, "made")).rows)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles_with_booktabs(runs: Path, tmp_path: Path) -> None:
    evil = [{**made, "model": EVIL} for made in repeated([200, 202, 204], workers=2)]
    many = [made for size in range(1, 50) for made in repeated([100, 101], strategy="single", batch_size=size)]
    write_race(runs, [*race_results(), *evil, *many])  # type: ignore[list-item]
    (tmp_path / "tables.tex").write_text(to_latex(make_report(load_race(runs, "made"))), encoding="utf-8")
    (tmp_path / "main.tex").write_text(
        "\\documentclass{article}\\usepackage[utf8]{inputenc}\\usepackage[T1]{fontenc}\\usepackage{booktabs}"
        "\\begin{document}\\input{tables}\\end{document}", encoding="utf-8",
    )
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"], cwd=tmp_path,
                          capture_output=True, text=True, errors="replace", timeout=280)
    assert done.returncode == 0, done.stdout[-2000:]


def test_every_latex_row_has_as_many_cells_as_its_table(report: Report) -> None:
    text = to_latex(report)
    printed = "".join(line for line in text.splitlines() if not line.startswith("%"))
    assert all(character.isalpha() for character in printed if not character.isascii())
    for body in re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, flags=re.DOTALL):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1


def test_a_race_without_a_finished_run_still_has_a_page(runs: Path) -> None:
    write_race(runs, [{**result(status="failed"), "test": None}])
    report = make_report(load_race(runs, "made"))
    assert "No run finished" in to_html(report, make_pictures(report))
    assert "no run finished" in to_markdown(report)
    assert to_latex(report).count("tabular}") == 2


def test_runs_without_validation_or_events_still_have_a_page(runs: Path) -> None:
    bare = [{**made, "history": [{**entry, "validation_accuracy": None} for entry in made["history"]]}
            for made in repeated([100, 101])]
    race = write_race(runs, bare)
    for file in race.path.glob("*/events.jsonl"):
        file.unlink()
    report = make_report(load_race(runs, "made"))
    assert [picture.name for picture in make_pictures(report)] == ["workers", "resources"]


def test_language_models_are_judged_by_perplexity(runs: Path) -> None:
    made = [
        {**one, "test": {"perplexity": 100.0 + one["seed"], "loss": 4.6, "total": 10},
         "history": [{**entry, "validation_perplexity": 300.0 / entry["epoch"]} for entry in one["history"]]}
        for one in (*repeated([100, 101], strategy="single"), *repeated([180, 181], workers=2))
    ]
    write_race(runs, made)
    report = make_report(load_race(runs, "made"), Criteria("accuracy"))
    page = to_html(report, make_pictures(report))
    assert "test perplexity" in page
    assert "test accuracy" not in page
    assert "Validation perplexity per epoch" in page


def test_images_and_texts_have_columns_figures_and_best_marks_of_their_own(runs: Path) -> None:
    text = {"perplexity": 120.0, "accuracy": None, "loss": 4.8, "total": 10}
    images = [made for dataset, best in (("digits", 0.99), ("kmnist", 0.85))
              for made in (result("single", 1, 100.0, best, dataset=dataset),
                           result("ddp", 2, 180.0, best - 0.005, dataset=dataset))]
    words = [{**made, "dataset": "ptb", "model": "lstm-small", "test": {**text, "perplexity": 100.0 + made["workers"]},
              "history": [{**entry, "validation_accuracy": None, "validation_perplexity": 300.0 / entry["epoch"]}
                          for entry in made["history"]]}
             for made in (result("single", 1, 900.0), result("ddp", 2, 990.0))]
    write_race(runs, [*images, *words])
    report = make_report(load_race(runs, "made"))
    assert report.main is not None
    headings = [column.heading for column in report.main.columns]
    assert headings.index("test perplexity") == headings.index("test accuracy") + 1
    for heading, best in (("test accuracy", {"0.9900", "0.8500"}), ("test perplexity", {"101.00"}),
                          ("throughput", {"180", "990"})):
        cells = [row[headings.index(heading)] for row in report.main.rows]
        assert {cell.text for cell in cells if cell.best} == best
    titles = [picture.title for picture in make_pictures(report)]
    for task, name in (("digits, dense-128", "accuracy"), ("kmnist, dense-128", "accuracy"),
                       ("ptb, lstm-small", "perplexity")):
        assert f"Validation {name} against time for {task}" in titles
        assert f"Validation {name} per epoch for {task}" in titles
    assert len({picture.name for picture in make_pictures(report)}) == len(titles)


def test_the_races_own_target_is_for_the_time_to_it_and_not_for_cost(velodrome, runs: Path) -> None:
    """Until the target, one worker is cheaper; for the whole run two are: the report must say what `recommend` says."""
    target = "accuracy>=0.4"
    quick = repeated([100, 101, 99], strategy="single", epochs=8, target=target)
    write_race(runs, [*quick, *repeated([240, 242, 238], workers=2, epochs=1, target=target)])
    record = load_race(runs, "made")
    others = {answer.objective: answer for answer in make_report(record).answers[0].others}
    asked = velodrome("recommend", "made", "--runs", runs, "--objective", "cost", "--json").json()
    assert others["cost"].as_json() == {name: value for name, value in asked.items() if name != "race"}
    assert "cheapest way to" not in others["cost"].verdict
    told = make_report(record, record.criteria("cost", target)).answers[0].recommendation
    asked = velodrome("recommend", "made", "--runs", runs, "--objective", "cost", "--target", target, "--json").json()
    assert told.as_json() == {name: value for name, value in asked.items() if name != "race"}
    assert told.why != others["cost"].why


def looks_of_lines(picture: Picture) -> list[tuple[object, ...]]:
    """How the lines of each panel look, beside grids and ideals."""
    return [
        (place, line.get_color(), str(line._dash_pattern), line.get_marker())  # type: ignore[attr-defined]
        for place, panel in enumerate(picture.figure.axes) for line in panel.lines
        if len(line.get_xdata()) > 2 and line.get_color() != INK
    ]


def test_no_two_lines_of_a_figure_look_the_same(runs: Path) -> None:
    labels = [(engine, strategy) for engine in ("torch", "tensorflow") for strategy in "abcd"]
    strategies = compare([result(strategy, 2, 100.0, engine=engine) for engine, strategy in labels])
    sizes = compare([result("ddp", workers, 10.0 * workers) for workers in range(1, 10)])
    batches = compare([result("ddp", 2, 10.0 * batch, batch_size=batch) for batch in range(10, 19)])
    for rows in (strategies, sizes, batches):
        for picture in (over_time(rows, None, Looks.of(rows)), over_epochs(rows, Looks.of(rows))):
            assert picture is not None
            looks = looks_of_lines(picture)
            assert len(looks) == len(rows)
            assert len(set(looks)) == len(looks)


def test_a_varied_batch_scope_tells_bars_and_rows_apart(runs: Path) -> None:
    rows = compare([result("ddp", 2, batch_scope=scope) for scope in ("global", "per-worker")])
    assert sorted(rest_of(rows).values()) == ["batch scope global", "batch scope per-worker"]
    assert "batch scope" in [column.heading for column in view_table("results", rows).columns]


def test_the_table_of_processes_says_where_it_was_cut(runs: Path) -> None:
    write_race(runs, [result("ddp", 10, 100.0, batch_size=size) for size in range(20, 40)])
    table = next(table for table in make_report(load_race(runs, "made")).tables if table.name == "nodes")
    assert MOST_NODE_ROWS <= len(table.rows) < MOST_NODE_ROWS + 11
    assert "14 of 20 configurations are shown; the CSV files have all." in table.note


def test_a_verdict_is_emphasised_when_it_is_settled(runs: Path) -> None:
    write_race(runs, [result("single", 1, 100.0), result("ddp", 2, 150.0)], "once")
    write_race(runs, [*repeated([100, 101, 99], strategy="single"), *repeated([150, 151, 149], workers=2)], "thrice")
    once, thrice = (to_html(make_report(load_race(runs, name)), []) for name in ("once", "thrice"))
    assert '<section class="verdict open">' in once
    assert '<section class="verdict use decided">' in thrice
    assert ".verdict .answer { font-size: 1.15rem; }" in once, "only .decided is bold"


def test_every_data_set_has_a_verdict_of_its_own(runs: Path) -> None:
    easy = [*repeated([100, 102, 98], strategy="single"), *repeated([180, 182, 178], workers=2)]
    hard = [{**made, "dataset": "kmnist"} for made in (*repeated([50, 51, 52], strategy="single"),
                                                       *repeated([20, 21, 22], workers=2))]
    write_race(runs, [*easy, *hard])
    report = make_report(load_race(runs, "made"))
    decisions = {answer.task: answer.recommendation.decision for answer in report.answers}
    assert decisions == {"digits": "use", "kmnist": "do-not-distribute"}
    assert to_html(report, []).count('<section class="verdict') == 2
    assert "## kmnist" in to_markdown(report)
    assert "tab:velodrome-pairwise-2" in to_latex(report)


def test_the_form_decides_the_file_and_csv_brings_the_processes(report: Report, race: Written, tmp_path: Path) -> None:
    assert write_report(report, "markdown") == [race.path / "report.md"]
    assert write_report(report, "csv", tmp_path) == [tmp_path / "made.csv", tmp_path / "made-processes.csv"]
    with pytest.raises(BadRequest, match="'docx'"):
        write_report(report, "docx")
    (tmp_path / "file").write_text("")
    with pytest.raises(VelodromeError, match="cannot write"):
        write_report(report, "csv", tmp_path / "file" / "report.csv")


def test_one_run_is_said_to_give_no_interval(runs: Path) -> None:
    write_race(runs, [result("single", 1, 100.0), result("ddp", 2, 180.0)])
    report = make_report(load_race(runs, "made"))
    assert any("a single run has no interval" in note for note in report.notes)
    assert report.pairwise[0].rows[0][-1].text == "open: 2 more runs, about 2 min"


@pytest.mark.integration
def test_a_thousand_runs_render_into_one_page_of_limited_size(runs: Path) -> None:
    results = thousand_runs()
    assert len(results) >= 1_000
    write_race(runs, results)
    done = subprocess.run([sys.executable, "-m", "velodrome", "report", "made", "--runs", str(runs)],
                          capture_output=True, text=True, timeout=280, check=True)
    page = Path(done.stdout.strip()).read_text(encoding="utf-8")
    assert f"85 configurations, {len(results)} finished runs" in page
    assert len(page) < 8_000_000

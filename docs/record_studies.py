"""Writes what recorded races of studies say into `docs/results-studies.md`, between two marks: published figures beside
ours, and claims.

    python docs/record_studies.py RACE_FOLDER...

Each folder is what `velodrome study run` left.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from velodrome.judge.conditions import background_load
from velodrome.reporting.load import load_race
from velodrome.studies.claims import Finding, findings
from velodrome.studies.outcome import FigureComparison, compare_figures
from velodrome.studies.quantities import quantity_named
from velodrome.studies.record import StudyRecord, hosts_cores
from velodrome.studies.wording import differences

HERE = Path(__file__).resolve().parent
PAGE = HERE / "results-studies.md"
BEGIN, END = "<!-- recorded: begin -->", "<!-- recorded: end -->"


def section(folder: Path) -> Iterator[str]:
    """What the runs of a race say about its study."""
    record = StudyRecord.read(folder)
    if record is None:
        raise SystemExit(f"{folder} is no race of a study")
    race, plan = load_race(folder.parent, folder.name), record.plan()
    rows, cores = race.judged().rows, hosts_cores(race.results) or record.cores
    yield f"## {plan.study.name}, scale {plan.scale}"
    loads = [load.used for result in race.results if (load := background_load(result)) is not None]
    repeats = max((len(row.results) for row in rows), default=0)
    busy = (f"; other programs used {min(loads):.1f} to {max(loads):.1f} cores, {fmean(loads):.1f} on average"
            if loads else "")
    yield (f"{len(race.results)} finished runs of {len(rows)} configurations, up to {repeats} of each, on "
           f"{record.machines}{busy}.")
    compared = compare_figures(plan, rows, cores)
    if lines := [*_figures(compared)]:
        yield "\n".join(["| configuration | quantity | published | ours | difference | within the noise |",
                         "|---|---|--:|--:|--:|---|", *lines])
    judged = findings(plan, rows, cores)
    counts = Counter(finding.verdict for finding in judged)
    yield "Claims: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "."
    if told := [_claim(finding) for finding in judged if finding.verdict != "not checkable here"]:
        yield "\n".join(told)
    reasons = Counter(finding.why.partition(";")[0] for finding in judged if finding.verdict == "not checkable here")
    if reasons:
        listed = "; ".join(f"{count} because {why}" for why, count in reasons.items())
        yield f"Not checkable by these runs: {listed}."
    changed = next((line for line in differences(plan) if line.startswith("Scale ")), "")
    if changed:
        yield changed


def _claim(finding: Finding) -> str:
    explained = "".join(f" What could explain it: {each}." for each in finding.explanations)
    return f"- **{finding.verdict}**: {finding.claim.text} ({finding.claim.place}). Ours: {finding.why}.{explained}"


def _figures(compared: list[FigureComparison]) -> Iterator[str]:
    """A line for each number that we measured, published or not."""
    seen: set[str] = set()
    for each in compared:
        if each.run is None or each.run in seen:
            continue
        seen.add(each.run)
        label = each.setting.label + (" (not in the study)" if each.setting.added else "")
        for name, ours in each.ours.items():
            quantity, published, difference = quantity_named(name), each.published.get(name), each.difference(name)
            if ours is None:
                continue
            noise = each.within_noise(name)
            yield " | ".join([
                f"| {label}", quantity.heading, "–" if published is None else format(published, quantity.form),
                format(ours, quantity.form), "–" if difference is None else format(difference, f"+{quantity.form}"),
                ("–" if difference is None else "not known" if noise is None else "yes" if noise else "no") + " |",
            ])
            label = ""


def main(folders: list[str]) -> None:
    if not folders:
        raise SystemExit(__doc__)
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no {BEGIN} and {END}")
    sections = ["\n\n".join(section(Path(folder))) for folder in folders]
    PAGE.write_text("\n\n".join([f"{before}{BEGIN}", *sections, f"{END}{after}"]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

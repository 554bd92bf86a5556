"""Recommends a configuration in three lines: which to use, why, and what to do next; caveats follow separately.

Pure functions from rows to sentences; which configuration beats which is decided in `judge/decide.py`. The rules are
in `docs/reference/numbers.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from velodrome.judge.advice import Commands
from velodrome.judge.caveats import (
    KEEP_BATCH,
    OTHER_SEEDS,
    configurations_of,
    crashes,
    doubts,
    late_note,
    one_seed_note,
    other_trainings,
    straggler_note,
    unreported_note,
    updates_note,
)
from velodrome.judge.compare import Row
from velodrome.judge.conditions import data_note, load_note
from velodrome.judge.configuration import names_of
from velodrome.judge.objective import ask
from velodrome.judge.phrases import as_sentence, in_list
from velodrome.judge.question import Price, Question, Tolerances
from velodrome.judge.reliability import misses_note
from velodrome.judge.verdict import Recommendation, decide_verdict


def recommend(
    rows: Sequence[Row], objective: str = "throughput", target: str | None = None, price: Price | None = None,
    failed: int = 0, margins: Tolerances = Tolerances(),  # noqa: B008 - frozen
    crashed: Mapping[str, int] = MappingProxyType({}), commands: Commands = Commands(),  # noqa: B008 - frozen
) -> Recommendation:
    """Answer for rows compared with the same target.

    `failed` counts all runs that gave no result, `crashed` those of configurations that always crashed, by name.
    `commands` are those on the race that may be recommended. Its sentences name what differs among these rows: which
    of several models is meant is said beside the answer.
    """
    names = names_of([row.configuration for row in rows])
    short = [replace(row, name=names[row.configuration.key]) for row in rows]
    whole = {one.name: row.name for one, row in zip(short, rows, strict=True)}
    return _answer(short, objective, target, price, failed, margins, crashed, commands).renamed(whole)


def _answer(
    rows: Sequence[Row], objective: str, target: str | None, price: Price | None, failed: int, margins: Tolerances,
    crashed: Mapping[str, int], commands: Commands,
) -> Recommendation:
    counts = configurations_of(rows, crashed, target)
    unfinished = _unfinished(rows, failed, crashed)
    if not rows:
        return Recommendation(
            objective, "nothing", "no run finished, so there is nothing to compare.", "",
            "`velodrome runs list` and the logs of the runs show why.", caveats=tuple(unfinished),
            configurations=counts)
    question = ask(rows, objective, target, price, margins)
    if not question.candidates:
        reason = question.no_candidates or f"no run measured what {objective} needs"
        way_out = question.way_out or "choose another objective"
        return Recommendation(objective, "nothing", f"{reason}.", "", f"{way_out}.",
                              caveats=(*map(as_sentence, question.notes), *unfinished), configurations=counts)
    found = decide_verdict(question, commands)
    if question.one_seed and found.decision == "open" and (question.objective == "accuracy" or question.seen_worse):
        found = replace(found, next=OTHER_SEEDS)
    reasons = _doubts(question, found)
    if reasons:
        found = replace(found, verdict=_doubted(question, found), next=_after_doubts(question, found, commands))
    changed = data_note(result for row in rows for result in row.results)
    caveats = [*([changed] if changed else []), *map(as_sentence, reasons),
               *_caveats(question, found, rows, reasons), *unfinished]
    return replace(found, doubts=reasons, caveats=tuple(dict.fromkeys(caveats)), configurations=counts)


def _doubted(question: Question, found: Recommendation) -> str:
    """The verdict of an answer that may be wrong. One that trains otherwise than what it beat shows nothing about
    distributing."""
    if found.decision == "use" and found.best in other_trainings([one.row for one in question.candidates]):
        return (f"use {found.best} for now, if its models are as good: its steps take more examples, which is another "
                "training.")
    return _for_now(found.verdict)


def _for_now(verdict: str) -> str:
    """`use torch/ddp for now: …`, for a verdict that does not say so yet."""
    head, colon, rest = verdict.removesuffix(".").partition(": ")
    if not head.startswith("use ") or head.endswith(" for now"):
        return verdict
    return f"{head} for now{colon}{rest}."


def _after_doubts(question: Question, found: Recommendation, commands: Commands) -> str:
    """What removes the doubts: a race that has its answer ends at once if it runs until it is sure, and nobody closes
    other programs who has none."""
    if other_trainings([candidate.row for candidate in question.candidates]):
        return KEEP_BATCH
    if found.decision != "open":
        return commands.more(question.standing.looks + 3, idle=question.slowed)
    standing = question.standing
    return commands.idle(standing.looks, standing.more, question.anew) if question.slowed else found.next


def _doubts(question: Question, found: Recommendation) -> tuple[str, ...]:
    """Why the answer may be wrong although the ranges allow for chance; empty for accuracy, which no load changes."""
    if question.objective == "accuracy":
        return ()
    rows = [candidate.row for candidate in question.candidates]
    reasons = [*doubts(rows), late_note(rows)]
    if found.decision == "open" and question.slowed and question.idle_outcome != "open":
        reasons.append(f"{_load(rows)}, which may have changed the answer")
    return tuple(reason for reason in reasons if reason)


def _caveats(question: Question, found: Recommendation, rows: Sequence[Row], reasons: Sequence[str]) -> list[str]:
    """What a reader must know beside the three lines, as sentences."""
    by_name = {row.name: row for row in rows}
    notes = list(question.notes)
    if question.slowed and not any(_load(rows) in reason for reason in reasons):
        notes.append(f"{_load(rows)}: the ranges allow for what that may have changed")
    if question.twins:
        notes.append(_twins(question.twins))
    notes.append(_other_means(question, found))
    best, rival = by_name.get(found.best or ""), by_name.get(found.rival or "")
    if best is not None:
        singles = [row for row in rows if row.single and row is not rival and row.batch_size == best.batch_size
                   and row.configuration.fields["engine"] == best.configuration.fields["engine"]]
        notes.append(updates_note(best, [*([rival] if rival is not None else []), *singles]))
    if found.decision not in ("open", "alone"):
        chosen = next(one for one in question.candidates if one.name == found.best)
        notes.append(misses_note(question, chosen, found.lead))
    if len(question.candidates) > 1 and all(one.distributed for one in question.candidates):
        notes.append("everything here was distributed, so whether distributing helps at all is not known")
    notes += [one_seed_note(question.one_seed), unreported_note(rows), straggler_note(rows)]
    return [as_sentence(note.removesuffix(".")) for note in notes if note]


def _other_means(question: Question, found: Recommendation) -> str:
    """Why figures of the answer differ from the means in tables, unless only stragglers do, which are named."""
    pair = [one for one in question.candidates if one.name in (found.best, found.rival)]
    if len(pair) < 2 or any(one.attempts is not None for one in pair):
        return ""
    compared = question.compared(*pair)
    fewer = any(len(one.blocks) > compared.with_stragglers for one in pair)
    if not fewer or all(question.amount(one, other) == question.amount(one) for one, other in (pair, pair[::-1])):
        return ""
    count = compared.count
    return (f"figures of this answer are of the {count} repetitions in which both were compared; means in tables have "
            "all runs") if count > 1 else ""


def _load(rows: Sequence[Row]) -> str:
    return load_note([result for row in rows for result in row.results])


def _twins(twins: Mapping[str, str]) -> str:
    """Which configurations are the same training as a `single`, and so no rivals of it."""
    groups: dict[str, list[str]] = {}
    for name, single in twins.items():
        groups.setdefault(single, []).append(name)
    found = [f"{in_list(names)} {'is' if len(names) == 1 else 'are'} the same training as {single}"
             for single, names in groups.items()]
    return f"{'; '.join(found)}, and not compared with it"


def _unfinished(rows: Sequence[Row], failed: int, crashed: Mapping[str, int]) -> list[str]:
    """Which configurations crashed, and how many runs did not finish for other reasons."""
    notes = [found for found in (crashes(rows, crashed), _ended(rows)) if found]
    others = failed - sum(row.crashed + row.ended for row in rows) - sum(crashed.values())
    if others > 0:
        notes.append(f"{others} run{' was' if others == 1 else 's were'} left out because "
                     f"{'it' if others == 1 else 'they'} did not finish")
    return [as_sentence(note) for note in notes]


def _ended(rows: Sequence[Row]) -> str:
    count = sum(row.ended for row in rows)
    what = "1 run was ended early and counts" if count == 1 else f"{count} runs were ended early and count"
    return f"{what} with the time until then: more could not have won" if count else ""

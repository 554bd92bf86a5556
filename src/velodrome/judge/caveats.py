"""What a reader of a verdict must know beside its three lines: why it may be wrong, and what figures leave out.

Pure functions from rows to sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from velodrome.catalog.exchange import ASYNCHRONOUS
from velodrome.job.result import Result
from velodrome.job.script import fields_in
from velodrome.judge.attempts import cost_of_unseen
from velodrome.judge.choice import Choice
from velodrome.judge.compare import Row
from velodrome.judge.conditions import load_note
from velodrome.judge.phrases import Lead, as_sentence, counted, in_list
from velodrome.judge.plausibility import implausible, late_note, one_seed_note, straggler_note
from velodrome.judge.question import Candidate, Question


def update_size(row: Row) -> int:
    """Examples behind one update of the weights: of all workers if they are synchronous, else of one."""
    result = row.results[0]
    if recorded := result.batch_of_step:
        return int(recorded)
    by_itself = (result.consistency or ("asp" if row.servers else "bsp")).partition(":")[0] in ASYNCHRONOUS
    per_worker = row.configuration.fields.get("batch_scope", "per-worker" if by_itself else "global") == "per-worker"
    if by_itself:
        return row.batch_size if per_worker else max(1, row.batch_size // row.workers)
    return row.batch_size * (row.workers if per_worker else 1)


def updates_note(best: Row, others: Iterable[Row]) -> str:
    """`torch/ddp updates the weights after 128 examples, torch/single after 64`; empty for updates of the same size, or
    if names say it."""
    updates = [f"{other.name} after {update_size(other):,}" for other in others if _differs(best, other)]
    if not updates:
        return ""
    return (f"{best.name} updates the weights after {update_size(best):,} examples, {' and '.join(updates)}: "
            "this is not the same training")


def _differs(best: Row, other: Row) -> bool:
    sizes = update_size(best), update_size(other)
    named = all(f"batch {size}" in row.name.split(", ") for size, row in zip(sizes, (best, other), strict=True))
    return sizes[0] != sizes[1] and not named


def configurations_of(rows: Iterable[Row], always: Mapping[str, int], target: str | None) -> dict[str, dict[str, int]]:
    """Runs, failures and update size of every configuration, by name; `always` as for `crashes`.

    With a target also the runs that reached it.
    """
    counts = {
        row.name: {"runs": row.runs, "failed": row.failed, "crashed": row.crashed}
        | ({} if row.is_script else {"update_size": update_size(row)})
        | ({"reached": row.reached} if target else {})
        for row in rows
    }
    return counts | {name: {"runs": 0, "failed": count, "crashed": count} for name, count in always.items()}


def crash_note(row: Row) -> str:
    """`crashed in 2 of 5 runs`; empty if it did not."""
    return f"crashed in {row.crashed} of {counted(row.attempts, 'run')}" if row.crashed else ""


def crashes(rows: Iterable[Row], always: Mapping[str, int]) -> str:
    """`torch/ddp with 2 workers crashed in 2 of 5 runs`, and so on for all that did; empty if none did.

    `always` counts the crashes of configurations of which no run finished, by name.
    """
    parts = [f"{row.name} {crash_note(row)}" for row in rows if row.crashed]
    parts += [f"{name} crashed in {'its only run' if count == 1 else f'all of {count} runs'}"
              for name, count in always.items()]
    return "; ".join(parts)


_UNTESTED = "figures of a test set"
#: Stands before the option that reads a figure from what a script printed.
PRINTED = "; of what it printed, "


def untested(history: Iterable[Mapping[str, Any]]) -> str:
    """What follows from a script that reported no figures of a test set, by the rows of its epochs."""
    validated = any(name.startswith("validation_") and epoch[name] is not None for epoch in history for name in epoch)
    known = "known on validation data only" if validated else "unknown"
    return f"{_UNTESTED}: the quality of the model is {known}"


def _untested_of(result: Result) -> str:
    return untested([epoch.model_dump() for epoch in result.history])


def _pattern(sentence: str) -> str:
    """Which option reads such a figure from what the script printed; empty if none is known."""
    _, marker, option = sentence.partition(PRINTED)
    return f"{marker}{option}" if marker else ""


def unreported_note(rows: Sequence[Row]) -> str:
    """`not reported by the script: examples (throughput is unknown)`, without a full stop; empty if nothing lacks."""
    lacking: dict[str, list[str]] = {}
    for row in rows:
        for sentence in dict.fromkeys(
            # Results of earlier versions have a sentence that did not ask for validation.
            _untested_of(result) + _pattern(reported) if reported.startswith(_UNTESTED) else reported
            for result in row.results for reported in result.not_reported or ()
        ):
            lacking.setdefault(sentence, []).append(row.name)
    parts = []
    grows = len({row.workers for row in rows}) > 1 and not all(
        "workers" in fields_in(str(row.configuration.fields.get("script_args") or "")) for row in rows)
    for sentence, names in lacking.items():
        what, _, follows = sentence.partition(": ")
        if what == "examples" and grows:
            follows += (", and so is whether the global batch grows with the workers, which would not be the same "
                        "training")
        whose = "" if len(names) == len(rows) else f" by {in_list(names)}"
        follows, _, option = follows.partition(PRINTED)
        parts.append(f"{what}{whose} ({follows}){f': {option} of what it printed' if option else ''}")
    return f"not reported by the script: {'; '.join(parts)}" if parts else ""


def misses_note(question: Question, chosen: Candidate, lead: Lead) -> str:
    """A sentence where a lead is in the time of runs that reach the target, and not proven per success.

    Empty where it is proven even if the target is missed now and then, where misses are counted, and without a target.
    """
    if not question.has_target or chosen.missed:
        return ""
    unseen = cost_of_unseen(chosen.count, len(question.candidates))
    if lead.low is not None and lead.low > math.exp(unseen):
        return ""
    return (f"All {chosen.count} runs of {chosen.name} {question.success}. So few runs cannot show that it always "
            f"will: up to {100 * (1 - math.exp(-unseen)):.0f} % of its runs may miss it, so what it "
            f"{question.wording.uses} per "
            "success is not settled.")


def unreliable(question: Question, choice: Choice) -> tuple[str, ...]:
    """Why the answer may be wrong although the ranges allow for chance; empty for accuracy, which no load changes."""
    if question.objective.of_models:
        return ()
    rows = [candidate.row for candidate in question.candidates]
    reasons = [*implausible(rows), late_note(rows)]
    if choice.decision == "open" and question.slowed and question.idle_outcome != "open":
        reasons.append(f"{_load(rows)}, which may have changed the answer")
    return tuple(reason for reason in reasons if reason)


def caveats_of(question: Question, choice: Choice, rows: Sequence[Row], reasons: Sequence[str]) -> list[str]:
    """What a reader must know beside the three lines and the reasons why they are not reliable, as sentences."""
    notes = list(question.notes)
    if question.slowed and not any(_load(rows) in reason for reason in reasons):
        notes.append(f"{_load(rows)}: the ranges are widened to allow for that")
    if question.twins:
        notes.append(_twins(question.twins))
    notes.append(_other_means(question, choice))
    best, rival = choice.chosen.row, None if choice.rival is None else choice.rival.row
    singles = [row for row in rows if row.single and row is not rival and row.batch_size == best.batch_size
               and row.configuration.fields["engine"] == best.configuration.fields["engine"]]
    notes.append(updates_note(best, [*([rival] if rival is not None else []), *singles]))
    if choice.decision != "open" and choice.rival is not None:
        notes.append(misses_note(question, choice.chosen, question.lead(choice.chosen, choice.rival)))
    if len(question.candidates) > 1 and all(candidate.distributed for candidate in question.candidates):
        notes.append("every configuration here was distributed, so it is not known whether distributing helps at all")
    notes += [one_seed_note(question.one_seed), unreported_note(rows), straggler_note(rows)]
    return [as_sentence(note.removesuffix(".")) for note in notes if note]


def _other_means(question: Question, choice: Choice) -> str:
    """Why figures of the answer differ from the means in tables, unless only stragglers do, which are named."""
    if choice.rival is None or choice.chosen.attempts is not None or choice.rival.attempts is not None:
        return ""
    pair = (choice.chosen, choice.rival)
    compared = question.compared(*pair)
    fewer = any(len(candidate.blocks) > compared.with_stragglers for candidate in pair)
    if not fewer or all(question.amount(candidate, other) == question.amount(candidate)
                        for candidate, other in (pair, pair[::-1])):
        return ""
    count = compared.count
    return (f"figures in this answer are from the {count} repetitions in which both were compared; means in tables "
            "include all runs") if count > 1 else ""


def _load(rows: Sequence[Row]) -> str:
    return load_note([result for row in rows for result in row.results])


def _twins(twins: Mapping[str, str]) -> str:
    """Which configurations are the same training as a `single`, and so no rivals of it."""
    groups: dict[str, list[str]] = {}
    for name, single in twins.items():
        groups.setdefault(single, []).append(name)
    parts = [f"{in_list(names)} {'trains' if len(names) == 1 else 'train'} exactly as {single} does"
             for single, names in groups.items()]
    return f"{'; '.join(parts)}, so they are not compared"


def unfinished(rows: Sequence[Row], failed: int, crashed: Mapping[str, int]) -> list[str]:
    """Which configurations crashed, and how many runs did not finish for other reasons."""
    notes = [note for note in (crashes(rows, crashed), _ended(rows)) if note]
    others = failed - sum(row.crashed + row.ended for row in rows) - sum(crashed.values())
    if others > 0:
        notes.append(f"{others} run{' was' if others == 1 else 's were'} left out because "
                     f"{'it' if others == 1 else 'they'} did not finish")
    return [as_sentence(note) for note in notes]


def _ended(rows: Sequence[Row]) -> str:
    count = sum(row.ended for row in rows)
    if not count:
        return ""
    if count == 1:
        return "1 run was ended early, because it could no longer win; its time until then counts"
    return f"{count} runs were ended early, because they could no longer win; their time until then counts"

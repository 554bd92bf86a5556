"""What a study's plan says in sentences: where settings come from, what cannot run, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from velodrome.job.values import in_words
from velodrome.studies.format import Origin
from velodrome.studies.outcome import FigureComparison
from velodrome.studies.plan import StudyPlan
from velodrome.studies.quantities import quantity_named

_ORIGINS: tuple[Origin, ...] = ("published", "assumed", "ours")
#: Values of a field that a line lists.
_MOST_VALUES = 8


def origin_lines(plan: StudyPlan) -> list[str]:
    """Where each setting of the study's configurations comes from: `Published: epochs 25 (tables 1 to 12)`.

    Fields with the same place or reason share a line.
    """
    values: dict[tuple[Origin, str], dict[str, dict[str, None]]] = {}
    settings = [each for setting in plan.settings if not setting.added for each in setting.provenance]
    for each in settings:
        shown = values.setdefault((each.origin, each.why), {}).setdefault(each.field, {})
        if each.value is not None:
            shown[Path(each.value).name if each.field == "script" else in_words(each.value)] = None
    lines = []
    for (origin, why), fields in sorted(values.items(), key=lambda item: _ORIGINS.index(item[0][0])):
        parts = [f"{name}{_listed(list(words))}" for name, words in fields.items()]
        lines.append(f"{origin.capitalize()}: {'; '.join(parts)}{f' ({why})' if why else ''}")
    return lines


def figure_lines(compared: Sequence[FigureComparison]) -> list[str]:
    """Where the published numbers of each configuration stand, with those over time and over epochs."""
    lines = []
    for each in compared:
        extents = [
            f"{quantity.heading} {extent.min:{quantity.form}} to {extent.max:{quantity.form}}"
            for name, extent in each.published_extents.items() for quantity in [quantity_named(name)]
        ]
        parts = [f"over time {', '.join(extents)}"] if extents else []
        parts += [f"{name.replace('_', ' ', 1)} {values[0]} to {values[-1]} over {len(values)} epochs"
                  for name, values in each.published_epochs.items()]
        if each.places:
            lines.append(f"Figures of {each.setting.label}: {'; '.join([*each.places, *parts])}")
    return lines


def _listed(words: Sequence[str]) -> str:
    if not words:
        return ""
    more = f" and {len(words) - _MOST_VALUES} more" if len(words) > _MOST_VALUES else ""
    return f" {', '.join(words[:_MOST_VALUES])}{more}"


def plan_lines(plan: StudyPlan) -> list[str]:
    """What cannot run here and what was reduced, a sentence each."""
    lines = [f"missing for {counted(count)}: {reason}" for reason, count in plan.missing.items()]
    lines += [f"reduced: {reduction}" for reduction in plan.reductions]
    if plan.left_out:
        lines.append(f"left out at scale {plan.scale}: {counted(plan.left_out)}")
    return [*lines, *([plan.data] if plan.data else [])]


def counted(count: int) -> str:
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

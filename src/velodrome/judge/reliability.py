"""What is said of configurations that never missed the target: few runs do not show that they never will."""

from __future__ import annotations

import math

from velodrome.judge.attempts import cost_of_unseen
from velodrome.judge.phrases import Lead
from velodrome.judge.question import Candidate, Question


def misses_note(question: Question, chosen: Candidate, lead: Lead | None) -> str:
    """A sentence where a lead is in the time of runs that reach the target, and not proven per success.

    Empty where it is proven even if the target is missed now and then, where misses are counted, and without a target.
    """
    if not question.has_target or chosen.missed:
        return ""
    unseen = cost_of_unseen(chosen.count, len(question.candidates))
    if lead is not None and lead.low is not None and lead.low > math.exp(unseen):
        return ""
    takes = "costs" if question.objective == "cost" else "takes"
    return (f"All {chosen.count} runs of {chosen.name} {question.success}. So few runs cannot show that it always "
            f"will: up to {100 * (1 - math.exp(-unseen)):.0f} % of its runs may miss it, so what it {takes} per "
            "success is not settled.")

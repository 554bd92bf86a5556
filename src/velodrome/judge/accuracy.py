"""The difference between two configurations in a metric, with both of its errors: random seeds and the finite test set.

Pure functions on scores of runs. Accuracies are fractions here; sentences show them in points (hundredths).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import TYPE_CHECKING

from velodrome.job.result import Result
from velodrome.judge.measures import CONFIDENCE, t_quantile, usable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Correct = NDArray[np.float64]

#: Freedom of a normal distribution, for what is estimated from a whole test set.
_MANY = 10_000.0
#: Differences below this share of the values are rounding.
_ROUNDING = 1e-6
#: Figures of two runs that differ by less are the same: sums of several threads may differ in their last digits.
_SAME_FIGURE = 1e-5
#: What else is recorded beside the figures of an epoch or a test.
_NO_FIGURES = frozenset({"epoch", "step", "total", "seconds", "evaluate_seconds"})


@dataclass(frozen=True)
class Score:
    """What one run achieved on its test set."""

    seed: int
    value: float
    #: Examples in the test set; 0 for a metric that is not a fraction of them.
    total: int = 0
    #: Which examples were right, as zeros and ones in the order of the test set; None where that was not recorded.
    correct: Correct | None = field(default=None, compare=False, repr=False)
    #: Equal for equal test sets; empty where it is not known.
    test_set: str = ""


@dataclass(frozen=True)
class Difference:
    """How much higher the first of two configurations scores, with the standard error and its degrees of freedom.

    `error` times a quantile of Student's t with `freedom` is half of an interval. `freedom` is that of the t
    distribution whose 95 % interval is `sqrt(t² seeds + z² examples)`, with t for the few runs and z for the many
    examples: Satterthwaite's formula would trust two runs that happen to agree.
    """

    estimate: float
    error: float
    freedom: float
    #: Whether both were compared on each test example.
    paired: bool = False
    #: Whether both ran with several seeds. If not, `error` leaves out what another seed would change for at least one
    #: of them, and nothing is proven.
    seeds_known: bool = True
    #: The part of `error` that is due to the finite test set: more runs do not make it smaller.
    lasting: float = 0.0

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Where the true difference lies, as often as `confidence` says."""
        reach = self.error * t_quantile((1 + confidence) / 2, self.freedom)
        return self.estimate - reach, self.estimate + reach


def difference(first: Sequence[Score], second: Sequence[Score]) -> Difference:
    """The mean of the first minus that of the second.

    Runs with the same seed are paired, because they have the same initial weights, order of examples and test set. With
    `d(r, i)` the difference of pair `r` on example `i`, `R` pairs and `n` examples, the variance of the mean is

        seeds + examples,  seeds = Var_r(mean over i of d) / R,  examples = Var_i(mean over r of d) / n - shared.

    `shared` is what both variances contain: with one test set for all seeds it is the interaction of the two-way table
    over `R n`; where each seed draws its own test set it is all of the second, because the runs show it already. Unless
    runs share their test sets and recorded which examples were right, `examples` is p (1 - p) / n for both, which can
    only be too large. It is never less than one example, because equal answers on a finite test set prove no equality.
    """
    if not first or not second:
        raise ValueError("a difference needs a run of each")
    seeds = sorted({score.seed for score in first} & {score.seed for score in second})
    apart = max(len({score.seed for score in first}), len({score.seed for score in second}))
    if seeds and (apart == 1 or (len(seeds) > 1 and 2 * len(seeds) >= apart)):
        return _of_pairs([(_merged(first, seed), _merged(second, seed)) for seed in seeds])
    return _of_samples(*([_merged(scores, seed) for seed in dict.fromkeys(score.seed for score in scores)]
                         for scores in (first, second)))


def _merged(scores: Sequence[Score], seed: int) -> Score:
    """The runs of one seed as one: they are not independent."""
    runs = [score for score in scores if score.seed == seed]
    if len(runs) == 1:
        return runs[0]
    whole = _share_examples(runs)
    return Score(seed, fmean(score.value for score in runs), min(score.total for score in runs),
                 _stacked(runs).mean(axis=0) if whole else None, runs[0].test_set if whole else "")


def _share_examples(scores: Sequence[Score]) -> bool:
    first = scores[0]
    return bool(first.test_set) and all(
        score.correct is not None and score.test_set == first.test_set and score.total == first.total
        for score in scores
    )


def _stacked(scores: Sequence[Score]) -> Correct:
    import numpy as np

    return np.stack([np.asarray(score.correct, dtype=np.float64) for score in scores])


def _over_examples(by_example: Correct) -> float:
    """The variance of a mean over test examples."""
    return float(by_example.var()) / len(by_example)


def _interaction(table: Correct) -> float:
    """The part of the mean's variance that runs and examples have together, from a table of runs by examples."""
    runs, examples = table.shape
    if runs < 2 or examples < 2:
        return 0.0
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0, keepdims=True) + table.mean()
    return float((rest**2).sum() / ((runs - 1) * (examples - 1) * runs * examples))


def _of_pairs(pairs: Sequence[tuple[Score, Score]]) -> Difference:
    differences = [first.value - other.value for first, other in pairs]
    count, estimate = len(pairs), fmean(differences)
    between = variance(differences) / count if count > 1 else 0.0
    freedom = max(1.0, count - 1.0)
    known = count > 1
    if not all(_share_examples(pair) for pair in pairs):
        samples = [[pair[side] for pair in pairs] for side in (0, 1)]
        return _combined(estimate, between, freedom, sum(map(_binomial, samples)), False, known, samples)
    table = [_stacked([first])[0] - _stacked([other])[0] for first, other in pairs]
    sets = {first.test_set for first, _ in pairs}
    if len(sets) == 1:
        import numpy as np

        whole = np.stack(table)
        examples = _over_examples(whole.mean(axis=0)) - _interaction(whole)
    else:
        examples = sum(map(_over_examples, table)) / count**2
        if len(sets) == count:  # what the test sets change, the seeds show
            examples = 0.0
    least = 1 / min(first.total for first, _ in pairs) ** 2 / len(sets)
    return _combined(estimate, between, freedom, max(examples, least), True, known)


def _of_samples(first: Sequence[Score], second: Sequence[Score]) -> Difference:
    samples = (first, second)
    estimate = fmean(score.value for score in first) - fmean(score.value for score in second)
    known = min(len(first), len(second)) > 1
    paired = _share_examples([*first, *second])
    parts = [variance(score.value for score in scores) / len(scores) if len(scores) > 1 else 0.0 for scores in samples]
    if paired:
        tables = [_stacked(scores) for scores in samples]
        whole = _over_examples(tables[0].mean(axis=0) - tables[1].mean(axis=0))
        examples = max(1 / first[0].total**2, whole - sum(map(_interaction, tables)))
    else:
        examples = sum(map(_binomial, samples))
    counts = [len(scores) for scores in samples]
    if not known and max(counts) > 1:  # the one that ran once is taken to vary as the other does
        many = counts.index(max(counts))
        parts[1 - many] = parts[many] * counts[many] / counts[1 - many]
        freedom = float(counts[many] - 1)
    else:
        freedom = _welch(parts, counts)
    return _combined(estimate, sum(parts), freedom, examples, paired, known, samples)


def _welch(parts: Sequence[float], counts: Sequence[int]) -> float:
    below = sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True) if count > 1)
    return sum(parts) ** 2 / below if below else float(max(1, min(counts) - 1))


def _binomial(scores: Sequence[Score]) -> float:
    """The variance of an accuracy because of its finite test set, as if every run erred on the same examples."""
    total = min(score.total for score in scores)
    if not total:
        return 0.0
    share = (fmean(score.value for score in scores) * total + 1) / (total + 2)
    return share * (1 - share) / (total + 2)


def _combined(
    estimate: float, seeds: float, freedom: float, examples: float, paired: bool, known: bool,
    samples: Sequence[Sequence[Score]] = (),
) -> Difference:
    """The difference with the sum of both variances."""
    if not examples:  # not a fraction of examples, so one run tells nothing
        if not known:
            return Difference(estimate, math.inf, 1.0, paired, False)
        largest = max((abs(score.value) for scores in samples for score in scores), default=0.0)
        return Difference(estimate, max(math.sqrt(seeds), _ROUNDING * largest), freedom, paired)
    spread = seeds + examples
    reach = (t_quantile(0.975, freedom) ** 2 * seeds + t_quantile(0.975, _MANY) ** 2 * examples) / spread
    return Difference(estimate, math.sqrt(spread), _freedom_of(math.sqrt(reach), freedom), paired, known,
                      math.sqrt(examples))


def _freedom_of(quantile: float, least: float) -> float:
    """The degrees of freedom of the t distribution with this 97.5 % quantile."""
    from scipy.special import stdtridf

    if quantile <= t_quantile(0.975, _MANY):
        return _MANY
    return max(least, min(_MANY, float(stdtridf(0.975, quantile))))


def has_one_seed(results: Sequence[Result]) -> bool:
    """Whether all runs of a script reported the same figures whatever seed they were given: they are one training."""
    figures = [_figures(result) for result in results]
    if not figures or not figures[0] or len({result.seed for result in results}) < 2:
        return False
    return all(result.script for result in results) and all(
        reported.keys() == figures[0].keys()
        and all(math.isclose(value, figures[0][name], rel_tol=_SAME_FIGURE) for name, value in reported.items())
        for reported in figures[1:]
    )


def _figures(result: Result) -> dict[tuple[int, str], float]:
    """What a run reported of how good its model is, after each epoch and at its end; no times."""
    parts = [*([result.test] if result.test else []), *result.history]
    return {(place, name): float(value) for place, part in enumerate(parts) for name, value in part.model_dump().items()
            if name not in _NO_FIGURES and usable(value)}


def scores_of(results: Sequence[Result], metric: str, fraction: bool) -> list[Score]:
    """The scores of runs that report the metric, read from their results; runs of one training have one seed."""
    scores = []
    one_seed = has_one_seed(results)
    for place, result in enumerate(results):
        test = result.test
        if test is None or not usable(value := test.value(metric)):
            continue
        seed = results[0].seed if one_seed else result.seed
        # A script may call something accuracy that is no fraction of its examples, such as per cent.
        share = fraction and 0 <= value <= 1
        total = test.total if share and test.total is not None and test.total < 1 << 53 else 0
        scores.append(Score(-1 - place if seed is None else seed, float(value), total, _correct(test.answers, total),
                            test.fingerprint or ""))
    return scores


def _correct(answers: str | None, total: int) -> Correct | None:
    """The recorded answers; None for runs of versions that did not record them, and for damaged ones."""
    if answers is None or not total:
        return None
    import numpy as np

    from velodrome.tasks.correctness_bits import decode

    try:
        return decode(answers, total).astype(np.float64)
    except ValueError:
        return None

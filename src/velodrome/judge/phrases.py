"""Phrases that sentences of verdicts share: leads, durations and lists, rounded so that they never mislead."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from velodrome.judge.criteria import Wording
from velodrome.judge.decide import Range

Scale = Literal["ratio", "points"]
#: From this ratio on, "so many times" reads better than a percentage.
_TIMES = 2.0
#: Less than these rounds to nothing in words.
_TENTH_PERCENT, _TENTH_POINT = 0.001, 0.1
#: Ranges beyond this say nothing.
_NOTHING = 10.0
#: Budgets that are suggested exceed what is expected by this share, because estimates err.
_SLACK = 1.1


@dataclass(frozen=True)
class Lead:
    """How much better the first is than the second, and the range that contains it, accounting for rivals and looks.

    As a ratio, of which 1 is equal, or in percentage points, of which 0 is.
    """

    estimate: float
    low: float | None = None
    high: float | None = None
    scale: Scale = "ratio"

    @classmethod
    def of(cls, difference: Range, scale: Scale) -> Lead:
        def shown(value: float) -> float:
            return 100 * value if scale == "points" else math.exp(max(-100.0, min(100.0, value)))

        low, high = (shown(end) if math.isfinite(end) else None for end in (difference.low, difference.high))
        return cls(shown(difference.estimate), low, high, scale)

    @property
    def equal(self) -> float:
        return 1.0 if self.scale == "ratio" else 0.0

    @property
    def shown(self) -> bool:
        """Whether the first is certainly better."""
        return self.low is not None and self.low > self.equal

    @property
    def refuted(self) -> bool:
        """Whether the second is."""
        return self.high is not None and self.high < self.equal

    def inverted(self) -> Lead:
        """The same for the second over the first."""
        def turned(value: float) -> float:
            return -value if self.scale == "points" else 1 / value

        low, high = (None if end is None else turned(end) for end in (self.high, self.low))
        return Lead(turned(self.estimate), low, high, self.scale)

    def plain(self, rival: str, wording: Wording) -> str:
        """`62 % faster than torch/ddp`, `2.4 times as fast as torch/ddp`; without the rival if it has no name."""
        words = self._end(self.estimate, wording)
        return f"{words} {'as' if ' times as ' in words else 'than'} {rival}" if rival else words

    def range(self, wording: Wording) -> str:
        """`38 % to 90 %`, `2.1 to 3.6 times`, `from 4 % slower to 11 % faster`; empty if nothing is known."""
        if self.low is None or self.high is None:
            return ""
        if self.low < self.equal:
            return self.span(wording)
        if self.scale == "points":
            return f"{_tenths(self.low)} to {self.high:.1f} points"
        low, high = (self._amount(end, wording, down=end is self.low) for end in (self.low, self.high))
        if self.high > _NOTHING * self.low:
            return f"at least {low}"
        return f"{low.removesuffix(' times') if high.endswith(' times') else low} to {high}"

    def _amount(self, value: float, wording: Wording, *, down: bool) -> str:
        """`38 %` or `2.4 times`, as the lead itself; rounded down where it is the lower end of a range."""
        if wording.saves or self.estimate < _TIMES:
            share = _saved(value) if wording.saves else value - 1
            return _percent_down(share) if down else _percent(share)
        return f"{_number_down(value) if down else _number(value)} times"

    def exceeds(self, tolerance: float) -> bool:
        """Whether it seems larger than what matters, a share or points of accuracy."""
        return self.estimate > (100 * tolerance if self.scale == "points" else 1 + tolerance)

    @property
    def is_level(self) -> bool:
        """Whether no difference is seen at all."""
        return self.size.startswith("less than")

    def _least(self, words: Callable[[float], str]) -> str:
        """The part of a lead that is certain; empty if that rounds to nothing."""
        if self.low is None or self.low < self.equal + (_TENTH_POINT if self.scale == "points" else _TENTH_PERCENT):
            return ""
        return f" (at least {words(self.low)})"

    @property
    def at_least(self) -> str:
        """` (at least 1.38×)`, ` (at least 0.4)` points, to follow a lead; rounded down."""
        return self._least(_tenths if self.scale == "points" else _times_down)

    @property
    def short(self) -> str:
        """`1.62×`, or `+0.8` points."""
        return f"{self.estimate:+.1f}" if self.scale == "points" else f"{self.estimate:.2f}×"

    @property
    def interval(self) -> str:
        """`[1.38, 1.90]`; empty if it says nothing."""
        if self.low is None or self.high is None:
            return ""
        if self.scale == "points":
            return f"[{self.low:+.1f}, {self.high:+.1f}]"
        low = _near_one(self.low) if self.low >= 0.01 else "0"
        return f"[{low}, {_near_one(self.high)}]" if self.high < 100 else f"[{low}, >100]"

    @property
    def size(self) -> str:
        """`3 %`, `2.4 times`, `0.3 points`: how far apart they seem, whoever is ahead."""
        if self.scale == "points":
            return f"{abs(self.estimate):.1f} points" if abs(self.estimate) >= 0.05 else "less than 0.1 points"
        apart = max(self.estimate, 1 / self.estimate)
        if apart - 1 < 0.0005:
            return "less than 0.1 %"
        return f"{_number(apart)} times" if apart >= _TIMES else _percent(apart - 1)

    def span(self, wording: Wording) -> str:
        """`from 4 % slower to 11 % faster`: where a lead that is not shown may lie; empty if nothing is known."""
        if self.low is None or self.high is None:
            return ""
        if self.scale == "ratio" and (self.high > _NOTHING or self.low < 1 / _NOTHING):
            return ""
        return f"from {self._end(self.low, wording)} to {self._end(self.high, wording)}"

    def _end(self, value: float, wording: Wording) -> str:
        if self.scale == "points":
            unit = "point" if f"{abs(value):.1f}" == "1.0" else "points"
            return f"{abs(value):.1f} {unit} {wording.better if value >= 0 else wording.worse}"
        if wording.saves:
            if value >= 1:
                return f"{_percent(_saved(value))} {wording.better}"
            if value <= 1 / _TIMES:
                return f"{_number(1 / value)} times {wording.times_as}"
            return f"{_percent(1 / value - 1)} {wording.worse}"
        if value >= _TIMES:
            return f"{_number(value)} times {wording.times_as}"
        if value <= 1 / _TIMES:
            return f"{_number(1 / value)} times {wording.worse}"
        return f"{_percent(abs(value - 1))} {wording.better if value >= 1 else wording.worse}"


def lead_json(lead: Lead | None) -> dict[str, Any]:
    """A lead, if there is one, as answers have it for scripts: on one of its scales, with its interval."""
    estimates = {"ratio": None, "points": None} | ({} if lead is None else {lead.scale: lead.estimate})
    return {**estimates, "interval": None if lead is None or lead.low is None else [lead.low, lead.high]}


def counted(count: int, noun: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def times(ratio: float) -> str:
    """`1.004×`, `1.62×`, `6.5×`, `19×`: as many digits as a reader needs."""
    if 1 < ratio < 1.01:
        return f"{max(ratio, 1.001):.3f}×"
    return f"{ratio:.2f}×" if ratio < _TIMES else f"{_number(ratio)}×"


def _times_down(ratio: float) -> str:
    digits = 3 if 1 < ratio < 1.01 else 2 if ratio < _TIMES else 0 if ratio >= 10 else 1
    return times(_down(ratio, digits))


def _near_one(ratio: float) -> str:
    """A ratio with two digits, and a third one where they would hide on which side of 1 it is."""
    return f"{ratio:.2f}" if f"{ratio:.2f}" != "1.00" or ratio == 1 else f"{ratio:.3f}"


def _saved(ratio: float) -> float:
    """The share that the cheaper of two costs less, if the other costs so many times as much."""
    return 1 - 1 / ratio


def _down(value: float, digits: int) -> float:
    """Rounded down; what floating point puts a hair below a shown digit stays there."""
    scale = 10.0**digits
    return math.floor(value * scale + 1e-9) / scale


def _tenths(value: float) -> str:
    return f"{_down(value, 1):.1f}"


def _percent(share: float) -> str:
    """A small share with the digits it needs: `0.4 %`, `3 %`, `62 %`."""
    number = 100 * share
    return f"{number:.1f} %" if abs(number) < 2 else f"{number:.0f} %"


def _percent_down(share: float) -> str:
    number = 100 * share
    return _percent(_down(number, 1 if number < 2 else 0) / 100)


def _number(value: float) -> str:
    if value >= 1000:
        return "over 1000"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _number_down(value: float) -> str:
    return _number(_down(value, 0 if value >= 10 else 1))


def in_list(names: Sequence[str], most: int = 4) -> str:
    """`a`, `a and b`, `a, b and c`; longer lists are cut."""
    shown = list(names) if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def as_sentence(reason: str) -> str:
    """A reason with its capital, unless it begins with the name of a configuration, and with its full stop."""
    first = reason.split(" ", 1)[0]
    return f"{reason if '/' in first else reason[0].upper() + reason[1:]}."


def in_words(seconds: float) -> str:
    """A duration as text, rounded."""
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s"
    if seconds < 5400:
        return f"{math.ceil(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def in_full(seconds: float) -> str:
    """A duration that somebody chose as text, to the second: `90 s`, `20 min`, `1 h 30 min`."""
    if seconds < 120:
        return f"{seconds:g} s"
    hours, rest = divmod(round(seconds), 3600)
    parts = ((hours, "h"), (rest // 60, "min"), (rest % 60, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def as_option(seconds: float) -> str:
    """A budget that is expected to be enough, as `--budget` takes it: `40s`, `12m`, `3h`."""
    wanted = seconds * _SLACK
    if wanted < 100:
        return f"{math.ceil(wanted / 5) * 5}s"
    if wanted < 5400:
        return f"{math.ceil(wanted / 60)}m"
    hours, minutes = divmod(math.ceil(wanted / 600) * 10, 60)
    return f"{hours}h{minutes}m" if minutes else f"{hours}h"

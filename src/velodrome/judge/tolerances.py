"""Which differences are too small to matter, as a user says it: `5%` or `0.05`."""

from __future__ import annotations

from dataclasses import dataclass

from velodrome.errors import BadRequest

TOLERANCE = 0.05


@dataclass(frozen=True)
class Margins:
    """Differences below these do not decide."""

    #: Differences below this share are ties.
    tolerance: float = TOLERANCE
    #: How much less accurate a faster configuration may be; None for what is usual for the metric.
    accuracy: float | None = None


def parse_margins(tolerance: str | float | None = None, accuracy: str | float | None = None) -> Margins:
    """Margins as given by a user; `BadRequest` if one is no share."""
    return Margins(
        TOLERANCE if tolerance is None else _share("--tolerance", tolerance, "5%"),
        None if accuracy is None else _share("--accuracy-margin", accuracy, "0.01"),
    )


def _share(option: str, given: str | float, example: str) -> float:
    text = str(given).strip()
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1:
        raise BadRequest(f"{option} {text!r}: give a share between 0 and 1, for example {example}")
    return value

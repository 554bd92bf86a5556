"""What the files of a run hold, as data: every event's fields and every result's, with their kinds.

`docs/reference/events.md` and `run-folder.md` say the same in words; a test keeps them together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What a value may be, and how to say so."""

    name: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    # Python reads NaN, Infinity and whole numbers of any length from JSON; nobody can count with them.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


TEXT = Kind("a text", lambda value: isinstance(value, str))
NUMBER = Kind("a number", _is_number)
SECONDS = Kind("a number that is not negative", lambda value: _is_number(value) and value >= 0)
COUNT = Kind("a whole number that is not negative", _is_count)
ONE_UP = Kind("a whole number from 1 on", lambda value: _is_count(value) and value >= 1)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
LIST = Kind("a list", lambda value: isinstance(value, list))
OBJECT = Kind("an object", lambda value: isinstance(value, Mapping))


def maybe(kind: Kind) -> Kind:
    return Kind(f"{kind.name} or null", lambda value: value is None or kind.fits(value))


def one_of(*words: str) -> Kind:
    return Kind(f"one of {', '.join(words)}", lambda value: value in words)


def _has_counts(value: Any) -> bool:
    return (
        isinstance(value, Mapping) and maybe(COUNT).fits(value.get("correct")) and COUNT.fits(value.get("total"))
        and "loss_sum" in value and maybe(NUMBER).fits(value["loss_sum"])
        and (value.get("correct") or 0) <= value["total"]
    )


COUNTS = Kind("counts (correct, total and loss_sum, with correct no more than total)", _has_counts)
NETWORK = Kind(
    "bytes in, out and loopback",
    lambda value: isinstance(value, Mapping) and all(COUNT.fits(value.get(name)) for name in ("in", "out", "loopback")),
)


@dataclass(frozen=True)
class Fields:
    """Fields that must be there, and fields that may be."""

    required: Mapping[str, Kind]
    optional: Mapping[str, Kind] = field(default_factory=dict)

    def wrong(self, values: Mapping[str, Any]) -> list[str]:
        """What does not fit, each as the end of a sentence. Fields that are not known are nobody's mistake."""
        found = [f"has no {name!r}" for name in self.required if name not in values]
        for name, kind in (*self.required.items(), *self.optional.items()):
            if name in values and not kind.fits(values[name]):
                found.append(f"has {name!r} {_short(values[name])}, which is not {kind.name}")
        return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


EVERY_EVENT = Fields({"time": NUMBER, "kind": TEXT}, {"role": maybe(TEXT), "rank": maybe(COUNT)})

EVENTS: dict[str, Fields] = {
    "phase": Fields(
        {"phase": one_of("import", "connect", "data", "build", "train", "evaluate", "save"),
         "state": one_of("begin", "end")},
        {"seconds": SECONDS, "epoch": ONE_UP, "part": one_of("validation", "test")},
    ),
    "progress": Fields(
        {"epoch": ONE_UP, "step": COUNT, "steps": COUNT, "examples": COUNT, "seconds": SECONDS},
        {"loss": maybe(NUMBER), "accuracy": maybe(NUMBER)},
    ),
    "epoch": Fields(
        {"epoch": ONE_UP, "seconds": SECONDS, "evaluate_seconds": SECONDS, "steps": COUNT, "train": COUNTS,
         "validation": COUNTS}
    ),
    "resources": Fields(
        {"cpu_percent": SECONDS, "memory_bytes": COUNT, "network": NETWORK},
        {"steps": COUNT, "seen": COUNT, "waiting": FLAG},
    ),
    "staleness": Fields({"mean": SECONDS, "max": SECONDS}, {"epoch": ONE_UP, "updates": COUNT}),
    "shares": Fields({"train_seconds": SECONDS, "collective_seconds": SECONDS}),
    "checkpoint": Fields({"epoch": ONE_UP, "file": TEXT}),
    "warning": Fields({"message": TEXT}),
    "error": Fields({"message": TEXT}, {"cause": TEXT, "traceback": maybe(TEXT)}),
    "result": Fields(
        {"test": COUNTS, "history": LIST, "parameters": COUNT, "steps": COUNT, "pace": OBJECT},
        {"reached_target": FLAG, "test_seconds": SECONDS, "confusion": maybe(LIST), "class_names": LIST,
         "implementation": maybe(OBJECT)},
    ),
    "lost": Fields({"message": TEXT}),
}

_ASKED_FOR = {"dataset": TEXT, "model": TEXT, "engine": TEXT, "strategy": TEXT, "workers": ONE_UP, "servers": COUNT,
              "batch_size": ONE_UP, "batch_scope": one_of("global", "per-worker")}
RESULT = Fields(
    {"run": TEXT, "path": TEXT, "status": one_of("finished", "failed", "interrupted"), **_ASKED_FOR, "epochs": COUNT,
     "test": maybe(OBJECT), "history": LIST, "seconds": OBJECT, "throughput": OBJECT, "nodes": LIST,
     "versions": OBJECT, "started": NUMBER, "ended": NUMBER},
    {"consistency": TEXT, "batch_of_step": ONE_UP, "optimizer": TEXT, "learning_rate": NUMBER, "seed": COUNT,
     "target": maybe(TEXT), "reached_target": maybe(FLAG), "steps": maybe(COUNT), "parameters": maybe(COUNT),
     "implementation": OBJECT,
     "staleness": OBJECT, "shares": OBJECT, "confusion": LIST, "class_names": LIST, "error": OBJECT, "machine": OBJECT},
)
TEST = Fields(
    {"loss": maybe(NUMBER), "total": ONE_UP},
    {"accuracy": maybe(NUMBER), "perplexity": maybe(NUMBER), "correct": maybe(COUNT)},
)
HISTORY = Fields({"epoch": ONE_UP, "seconds": SECONDS, "evaluate_seconds": SECONDS}, {
    f"{part}_{name}": maybe(NUMBER) for part in ("train", "validation") for name in ("accuracy", "loss", "perplexity")
})
SECONDS_PARTS = Fields({"startup": SECONDS, "train": SECONDS, "evaluate": SECONDS, "total": SECONDS})
THROUGHPUT = Fields(
    {"examples_per_second": maybe(SECONDS), "batches_per_second": maybe(SECONDS)}, {"warmup_steps": COUNT}
)
NODE = Fields(
    {"role": TEXT, "rank": COUNT, "host": TEXT, "cpu_percent": OBJECT, "memory_bytes": OBJECT,
     "network_bytes": NETWORK},
    {"phases": OBJECT},
)

"""One configuration of a study: what was published of it, our job for it, and how the two differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velodrome.job.job import make_job
from velodrome.job.script import filled
from velodrome.judge.compare import Row
from velodrome.studies.format import Provenance


def size_of(fields: Mapping[str, Any]) -> str:
    """`2` workers, or `2+1` with a server."""
    return f"{fields.get('workers', 1)}" + (f"+{fields['servers']}" if fields.get("servers") else "")


def label_of(fields: Mapping[str, Any]) -> str:
    """A job of a study in a few words."""
    if fields.get("script"):
        words = filled(make_job({**fields}), None)
        return f"{Path(fields['script']).name} {words}, {fields['engine']} {size_of(fields)}".replace(" ,", ",")
    framework = f" ({fields['framework']})" if fields.get("framework") else ""
    over = f" over {fields['collectives']}" if fields.get("collectives") else ""
    stock = " (stock)" if fields.get("implementation") == "stock" else ""
    return (
        f"{fields['dataset']}, {fields['engine']}/{fields['strategy']}{framework}{stock}{over} {size_of(fields)}, "
        f"batch {fields['batch_size']}, {fields['epochs']} epochs"
    )


@dataclass(frozen=True)
class Setting:
    """One published configuration and our job for it."""

    published: Mapping[str, Any]
    #: Fields of our job, or None if it cannot run.
    ours: Mapping[str, Any] | None
    #: What differs from the published job: `epochs 25 → 1`.
    changes: tuple[str, ...] = ()
    #: Why it cannot run, with the solution.
    missing: str | None = None
    #: Not part of the published study.
    added: bool = False

    #: Where each setting of the published configuration comes from.
    provenance: tuple[Provenance, ...] = ()

    @property
    def label(self) -> str:
        """The published configuration as a label."""
        return label_of(self.published)


def row_of(setting: Setting, rows: Sequence[Row]) -> Row | None:
    """Our row for a configuration: the one whose job has all its fields."""
    if setting.ours is None:
        return None
    for row in rows:
        if all(_is(name, row.configuration.fields.get(name), value) for name, value in setting.ours.items()):
            return row
    return None


def _is(name: str, stored: object, wanted: object) -> bool:
    """Whether a stored field is the wanted one. Scripts with servers are passed their roles and addresses besides."""
    if stored == wanted:
        return True
    return name == "script_args" and isinstance(stored, str) and stored.startswith(f"{wanted} --job_name=")


#: What makes a training shorter, but no step of it another one.
_LENGTH = frozenset({"epochs", "steps"})
#: What our job may have besides the published fields without being another experiment. An implementation is one of the
#: published fields in studies of frameworks.
_HARMLESS = frozenset({"bad_data", "implementation"})


def other_experiment(setting: Setting, *, steady: bool) -> list[str]:
    """What of our job differs so that it cannot speak about what was published.

    What is `steady` is the same for a shorter training. The same data read from shards is the same data.
    """
    published = setting.published
    ignored = (_HARMLESS - published.keys()) | (_LENGTH if steady else frozenset())
    return [
        f"{name} {published.get(name)} → {value}" if name in published else f"{name} {value}"
        for name, value in (setting.ours or {}).items()
        if name not in ignored and published.get(name) != value
        and not (name == "dataset" and str(value).startswith("shards:"))
    ]

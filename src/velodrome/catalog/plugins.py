"""Engines, launchers and the like by name: ours, and those that other packages register as entry points.

Ours are entries of the same form. An entry that cannot be loaded is refused where it is named, and left out of lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from velodrome.errors import BadRequest


@dataclass(frozen=True)
class Plugins:
    """What can be chosen by name."""

    #: The group of entry points, such as `velodrome.launchers`.
    group: str
    #: What sentences call one of them.
    title: str
    #: What an entry must be.
    kind: type | tuple[type, ...]
    #: Our own: module and attribute by name.
    ours: Mapping[str, str]

    def __hash__(self) -> int:
        return hash(self.group)

    def names(self) -> list[str]:
        """All names, ours first; nothing is imported for it."""
        return [*self.ours, *(name for name in sorted(_registered(self.group)) if name not in self.ours)]

    def get(self, name: str) -> Any:
        """What has that name, None if nothing has; `BadRequest` if it cannot be loaded."""
        if name in self.ours:
            return load(self.ours[name])
        entry = _registered(self.group).get(name)
        return None if entry is None else _loaded(self, entry)

    def usable(self) -> list[str]:
        """The names of all that can be loaded."""
        broken = self.broken()
        return [name for name in self.names() if name not in broken]

    def all(self) -> list[Any]:
        """All that can be loaded."""
        return [self.get(name) for name in self.usable()]

    @cache  # noqa: B019  # there is one for each group
    def broken(self) -> dict[str, str]:
        """Why those of other packages that cannot be loaded cannot, by name."""
        reasons = {}
        for name in self.names()[len(self.ours) :]:
            try:
                self.get(name)
            except BadRequest as error:
                reasons[name] = str(error)
        return reasons


def load(value: str) -> Any:
    """The object that `module:attribute` names."""
    return EntryPoint("", value, "").load()


@cache
def _registered(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


def _loaded(plugins: Plugins, entry: EntryPoint) -> Any:
    whose = f"{plugins.title} {entry.name!r} of package {entry.dist.name!r}" if entry.dist else entry.name
    try:
        loaded = entry.load()
    except Exception as error:
        raise BadRequest(f"{whose} cannot be loaded: {type(error).__name__}: {error}; update or remove the package") \
            from error
    if not isinstance(loaded, plugins.kind):
        raise BadRequest(f"{whose} cannot be used: {entry.value!r} is a {type(loaded).__name__}; see its documentation "
                         "for the version of Velodrome that it needs")
    return loaded

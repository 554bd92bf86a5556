"""The interpreter of a host that trains with an engine: the environment that `velodrome engines install` made there."""

from __future__ import annotations

from dataclasses import dataclass

from velodrome.catalog.base import Engine
from velodrome.clusters import environment_record
from velodrome.clusters.remote.link import Link


@dataclass(frozen=True)
class Interpreter:
    """An interpreter of a host."""

    path: str
    #: The folder of an engine's own environment to which it belongs, if another version of Velodrome made that.
    outdated: str | None = None


def own(link: Link, engine: Engine, folder: str) -> Interpreter | None:
    """The interpreter of an engine's own environment in a folder of a host; None if the engine needs none, or it was
    never completed there."""
    if engine.own_environment is None:
        return None
    home = f"{folder}/{engine.key}"
    answer, output = link.run(["cat", f"{home}/{environment_record.FILE}"])
    record = environment_record.parsed(output) if answer["code"] == 0 else None
    if record is None:
        return None
    current = record == environment_record.wanted(engine)
    return Interpreter(f"{home}/bin/python", outdated=None if current else home)

"""What a cluster definition may hold whatever its launcher: where processes are placed. Each launcher adds its own.

A launcher's options are one pydantic model: `clusters.yaml` gives it fields, `--on NAME:TEXT` gives it a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from velodrome.clusters.placement import Placement, can_be_placed
from velodrome.errors import BadRequest, which_name
from velodrome.job.read import reason_of


class ClusterOptions(BaseModel):
    """Fields of every cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    placement: Literal["spread", "pack"] = Field(
        "spread", description="give each process a host of its own while there are some (spread), or fill one host "
        "after the other (pack)"
    )
    slots: int | None = Field(
        None, ge=1, description="processes that `pack` puts on one host; by default as many as the host has cores"
    )
    servers: Literal["spread", "beside", "apart"] = Field(
        "spread", description="where parameter servers run: on the next free hosts like any process (spread), on the "
        "hosts of the workers (beside), or on hosts that have no worker (apart)"
    )
    place: dict[str, str] = Field(
        default_factory=dict, description="hosts of certain processes: a role, or a role and rank such as `worker:1`, "
        "with one host or several, separated by commas"
    )

    @field_validator("place")
    @classmethod
    def _places_can_be_read(cls, places: dict[str, str]) -> dict[str, str]:
        for who, hosts in places.items():
            if not can_be_placed(who, hosts):
                raise ValueError(f"{who!r} on {hosts!r} cannot be read: write it as {{server: a, 'worker:1': b}}")
        return places

    @classmethod
    def inline(cls, text: str) -> dict[str, Any]:
        """The fields that stand behind the launcher's name and a colon, as in `--on ssh:a,b`; `BadRequest`."""
        if text:
            raise BadRequest(f"{text!r}: this launcher takes no options")
        return {}

    def placed(self, pins: Mapping[str, str]) -> Placement:
        """The placement policy, with pins of the command line on top."""
        return Placement(self.placement, self.servers, {**self.place, **pins}, self.slots)


class NoOptions(ClusterOptions):
    """Options of a launcher that has none of its own."""


def validated(kind: type[ClusterOptions], fields: Mapping[str, Any], where: str) -> Any:
    """Options of that kind, or `BadRequest` with every mistake in them; `where` begins the sentence."""
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        raise BadRequest(f"{where}: " + "; ".join(_sentence(kind, part) for part in error.errors())) from None


def _sentence(kind: type[ClusterOptions], error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"no field {name!r}: {which_name(name, kind.model_fields)}"
    if error["type"] == "missing":
        return f"the field {name!r} is missing"
    given, reason = repr(error["input"]), reason_of(error)
    if not name:  # of all fields together
        return reason
    return f"{name}: {reason}" if given in reason else f"{name} {given}: {reason}"



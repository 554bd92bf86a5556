"""The options of emulated clusters, in clusters.yaml and behind `emulated:`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from velodrome.clusters.emulated.request import EmulatedCluster, parse, split
from velodrome.clusters.options import ClusterOptions
from velodrome.errors import BadRequest


class EmulatedOptions(ClusterOptions):
    """Hosts on this machine that are all alike."""

    nodes: int = Field(2, ge=1, description="number of hosts")
    bandwidth: str | None = Field(
        None, description="what each host can send and receive, as `1gbit`; unlimited by default"
    )
    latency: str | None = Field(None, description="time that a packet takes from host to host, as `0.5ms`")
    cpu: float | None = Field(None, gt=0, description="cores' time that each host has; unlimited by default")
    memory: str | None = Field(None, description="memory that each host has, as `2g`; unlimited by default")

    @model_validator(mode="after")
    def _can_be_read(self) -> EmulatedOptions:
        try:
            self.request()
        except BadRequest as error:
            raise ValueError(str(error).removeprefix("--on emulated: ")) from None
        return self

    @classmethod
    def inline(cls, text: str) -> dict[str, Any]:
        parse(text)  # its sentences show how to write it
        return dict(split(text))

    def request(self) -> EmulatedCluster:
        """The same, as numbers."""
        fields = ("nodes", "bandwidth", "latency", "cpu", "memory")
        given = {name: getattr(self, name) for name in fields}
        return parse(",".join(f"{name}={value}" for name, value in given.items() if value is not None))

"""The options of clusters that are reached over SSH."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from velodrome.clusters.launcher import LauncherType
from velodrome.clusters.remote import RemoteOptions


class SshOptions(RemoteOptions):
    """Hosts that the user's OpenSSH client reaches."""

    hosts: list[str] = Field(min_length=1, description="names of the hosts, as `ssh NAME` takes them, or USER@HOST")
    ssh_config: str | None = Field(None, description="configuration of the SSH client; by default `~/.ssh/config`")
    connect_timeout: float = Field(15.0, gt=0, description="seconds that a connection to a host may take")

    @field_validator("hosts")
    @classmethod
    def _hosts_are_names(cls, hosts: list[str]) -> list[str]:
        for host in hosts:
            if not host or host.startswith("-") or any(letter.isspace() or letter in "'\"\\;$`" for letter in host):
                raise ValueError(f"{host!r} is not the name of a host")
        if len(set(hosts)) < len(hosts):
            raise ValueError(f"{next(host for host in hosts if hosts.count(host) > 1)!r} is named twice")
        return hosts

    @property
    def named_hosts(self) -> list[str]:
        return self.hosts

    @classmethod
    def inline(cls, text: str) -> dict[str, Any]:
        return {"hosts": [host.strip() for host in text.split(",") if host.strip()]}


LAUNCHER = LauncherType(
    "ssh",
    "hosts that your OpenSSH client reaches, without a shared disk",
    "velodrome.clusters.ssh.launcher:SshLauncher",
    here=False, inline="HOST,HOST", options=SshOptions, needs_options=True,
)

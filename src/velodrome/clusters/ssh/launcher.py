"""The launcher of hosts that the user's OpenSSH client reaches."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from velodrome.clusters.remote import bootstrap
from velodrome.clusters.remote.launcher import RemoteLauncher
from velodrome.clusters.remote.link import Link
from velodrome.clusters.ssh.connection import SshChannel, client, control_folder, remote_words
from velodrome.clusters.ssh.options import SshOptions
from velodrome.errors import Unavailable


class SshLauncher(RemoteLauncher):
    """Starts processes on hosts through one SSH connection to each."""

    name = "ssh"
    options: SshOptions

    def __init__(self, options: SshOptions, pins: Mapping[str, str] | None = None) -> None:
        super().__init__(options, pins)
        self._control: Path | None = None

    def hosts(self) -> list[str]:
        return list(self.options.hosts)

    def part(self, hosts: Sequence[str]) -> SshLauncher:
        return SshLauncher(self.options.model_copy(update={"hosts": [*hosts]}))

    def try_to_connect(self, hosts: Sequence[str]) -> dict[str, str]:
        if shutil.which("ssh") is None:
            message = "--on ssh needs the OpenSSH client, and this machine has none; install openssh-client"
            raise Unavailable(message, [message])
        if self._control is None:  # before threads open channels at the same time
            self._control = control_folder()
        return super().try_to_connect(hosts)

    @property
    def ready_seconds(self) -> float:
        """The client connects first, and has a limit of its own."""
        return self.options.connect_timeout + super().ready_seconds

    def open_channel(self, host: str, session: str) -> SshChannel:
        options = self.options
        assert self._control is not None, "it is made before hosts are connected to"
        words = bootstrap.command("", session, options.silence, options.root)[1:]
        prepared = f"{options.root}/environment/bin/python"
        pythons = [options.python] if options.python else [prepared, "python3", "python"]
        return SshChannel(host, [*client(options, host, self._control), remote_words(words, pythons)])

    def address(self, link: Link) -> str:
        """As configured, else the address at which the host's sshd took our connection: private networks included."""
        connection = str(link.facts["connection"]).split()
        seen = connection[2] if len(connection) == 4 else link.host.rpartition("@")[2]
        return self.options.addresses.get(link.host, seen)

    def close(self) -> None:
        super().close()
        if self._control is not None:
            shutil.rmtree(self._control, ignore_errors=True)
            self._control = None

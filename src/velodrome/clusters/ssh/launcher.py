"""The launcher of hosts that the user's OpenSSH client reaches: one connection to each, through which its agent is
started and served.

A connection is a master whose socket lies in a folder of this process, so that what must be done beside the agent
needs no second one. It never outlives this process: when our end of its pipes closes, so does the agent's.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from velodrome.clusters.remote.channels import PipeChannel, agent_words
from velodrome.clusters.remote.launcher import RemoteLauncher
from velodrome.clusters.remote.link import Link
from velodrome.clusters.ssh import SshOptions
from velodrome.errors import Unavailable, headline

_PREFIX = "velodrome-ssh-"
#: What the client prints when it got a stream to the host that ended at once. What stands before it was printed by the
#: client of a jump host (ProxyJump or ProxyCommand), unless that has reached its host, which then could not go further.
_ENDED_AT_ONCE, _BEYOND = "kex_exchange_identification", "stdio forwarding failed"
#: Where a client names the host that it could not connect to.
_NAMED = re.compile(
    r"connect to host (\S+) port|Could not resolve hostname (\S+?):|host key is known for (\S+) and|"
    r"Host key for (\S+) has changed|(?:^|@)([\w.:-]+): Permission denied|"
    r"Connection (?:closed|reset) by (?!UNKNOWN|remote)(\S+) port", re.MULTILINE,
)
#: What the client prints, and what it means to a person: the cause, and after a semicolon how to fix it.
_REASONS = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", "has another host key than known_hosts; if it was reinstalled, remove "
     "the old key with `ssh-keygen -R HOST` and run `ssh HOST` once to check the new one"),
    (r"Host key verification failed|No \S+ host key is known", "has a host key that is not in known_hosts; run "
     "`ssh HOST` once, and compare its fingerprint"),
    (r"Permission denied|Too many authentication failures|no mutual signature", "refuses our key (permission denied); "
     "check `ssh -o BatchMode=yes HOST true`, the key of ssh-agent or IdentityFile, and authorized_keys there"),
    (r"Could not resolve hostname", "cannot be found: its name does not resolve; set HostName in its "
     "SSH configuration"),
    (r"Connection refused", "refuses connections; see whether sshd is running there, on that port"),
    (r"No route to host|Network is unreachable", "cannot be reached: there is no route to it; check its address and "
     "the network of this machine"),
    (r"timed out|Timeout, server", "does not answer: it is down, or a firewall drops the connection; see "
     "whether it is up, or raise connect_timeout"),
    (r"Bad configuration option|Can't open user config", "cannot be connected to: the SSH configuration is wrong; "
     "see what `ssh HOST` prints"),
    (r"No space left on device|Disk quota exceeded", "has no space left on its disk; free some there"),
    (r"not found|No such file or directory", "has no interpreter to start an agent with; install python3 there, or "
     "set python in clusters.yaml"),
    (r"Connection closed|Connection reset|Broken pipe|closed by remote host|Connection to \S+ closed|kex_exchange",
     "closed the connection: it was shut down, its sshd was ended, or it refuses more connections"),
)


def control_folder() -> Path:
    """A new folder for the sockets of this process; those of processes that are gone are removed."""
    place = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())  # names of sockets are short
    for old in place.glob(f"{_PREFIX}*"):
        pid = old.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not _may_be_of(old, int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))


def _may_be_of(folder: Path, pid: int) -> bool:
    """Whether a process may have made a folder: it is there, and is not younger, as one with a used number is."""
    try:
        return psutil.Process(pid).create_time() <= folder.stat().st_mtime + 1.0
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
    except (psutil.Error, OSError):
        return True


def client(options: SshOptions, host: str, control: Path) -> list[str]:
    """The client's words for a host: never asks anything, always checks the host's key, and notices a dead network."""
    alive = max(1, int(options.silence / 4))
    settings = {
        "BatchMode": "yes", "StrictHostKeyChecking": "yes", "ConnectTimeout": str(int(max(1, options.connect_timeout))),
        "ConnectionAttempts": "1", "ServerAliveInterval": str(alive), "ServerAliveCountMax": "4",
        "ControlMaster": "auto", "ControlPath": str(control / "%C"), "ControlPersist": "no", "ForwardAgent": "no",
        "ForwardX11": "no", "ClearAllForwardings": "yes", "RequestTTY": "no", "RemoteCommand": "none",
        "PermitLocalCommand": "no", "EscapeChar": "none", "LogLevel": "ERROR",
    }
    config = ["-F", str(Path(options.ssh_config).expanduser())] if options.ssh_config else []
    given = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", *config, *given, "--", host]


def remote_words(words: list[str], pythons: list[str]) -> str:
    """A command for the login shell of a host, whichever that is: words for the first interpreter that is there."""
    tried = " ".join(_shell_path(python) for python in pythons)
    script = (
        f'for python in {tried}; do if command -v "$python" > /dev/null 2>&1; then exec "$python" "$@"; fi; done; '
        f'echo "{pythons[0]}: not found" >&2; exit 127'
    )
    return shlex.join(["sh", "-c", script, "sh", *words])


def _shell_path(path: str) -> str:
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


class SshChannel(PipeChannel):
    """The stream to a host's agent: the pipes of an SSH client."""

    def __init__(self, host: str, words: list[str]) -> None:
        super().__init__(words)
        self._host = host

    def end_reason(self) -> str:
        return reason(*self.ended(), self._host)


def _meaning(errors: str) -> str:
    """What a client's lines mean; empty if that is not known."""
    meanings = (meaning for pattern, meaning in _REASONS if re.search(pattern, errors, re.IGNORECASE))
    return next(meanings, "")


def reason(errors: str, code: int | None, host: str) -> str:
    """Why a client ended, as the end of a sentence about its host."""
    of_jump_host, ended, _ = errors.partition(_ENDED_AT_ONCE)
    if ended and _BEYOND not in of_jump_host and (meaning := _meaning(of_jump_host)):
        named = _NAMED.search(of_jump_host)
        name = next(filter(None, named.groups())) if named else ""
        jump = f"jump host {name!r}" if name else "jump host"
        return f"cannot be reached: its {jump} {meaning.replace('HOST', name or host)}"
    if meaning := _meaning(errors):
        return meaning.replace("HOST", host)
    last = headline(errors.strip().rpartition("\n")[2])
    if last:
        return f"ended the connection: {last}"
    # The client reports a process that was killed like a connection that was closed.
    return "closed the connection, or its agent was killed" if code in (None, 255) else f"ended its agent (code {code})"


class SshLauncher(RemoteLauncher):
    """Starts processes on hosts through one SSH connection to each."""

    name = "ssh"
    options: SshOptions

    def __init__(self, options: SshOptions) -> None:
        super().__init__(options)
        self._control: Path | None = None

    def hosts(self) -> list[str]:
        return list(self.options.hosts)

    def part(self, hosts: Sequence[str]) -> SshLauncher:
        return SshLauncher(self.options.model_copy(update={"hosts": [*hosts]}))

    def try_to_connect(self, hosts: Sequence[str]) -> dict[str, str]:
        if shutil.which("ssh") is None:
            message = "--on ssh needs the OpenSSH client, but this machine has none; install openssh-client"
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
        words = agent_words(session, options.silence, options.root)
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

"""One node on this machine: a network namespace with its own address and name, held by a process."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from velodrome.errors import VelodromeError

#: Both take milliseconds on an idle machine.
_START_SECONDS, _RUN_SECONDS = 30.0, 30.0
#: What a holder does: it takes its name, sees its own table of hosts, reports that it is there, and waits for the end.
_HOLD = 'hostname "$1" && { [ -z "$2" ] || mount --bind "$2" /etc/hosts; } && echo ready && exec cat > /dev/null'


class Node:
    """One namespace and the process that holds it."""

    def __init__(self, name: str, address: str, hosts: Path | None) -> None:
        self.name, self.address = name, address
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", _HOLD, "sh", name, str(hosts or "")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd="/",
        )

    def wait_until_ready(self) -> None:
        """Wait for the first process; `VelodromeError` if it fails or does not come in time."""
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if not select.select([self._holder.stdout], [], [], _START_SECONDS)[0]:
            raise VelodromeError(f"{self.name} cannot be emulated: its first process did not start within "
                                 f"{_START_SECONDS:g} s; is this machine busy?")
        if self._holder.stdout.readline() != b"ready\n":
            reason = self._holder.stderr.read().decode(errors="replace").strip()
            raise VelodromeError(f"{self.name} cannot be emulated: {reason or 'its first process ended at once'}")

    def enter(self, words: Sequence[str]) -> list[str]:
        """A command that runs inside the node, as the process that starts it."""
        return ["nsenter", f"--target={self._holder.pid}", "--net", "--uts", "--mount", "--wd=.", "--", *words]

    def run(self, *words: str) -> None:
        _run(self.enter(words))

    @property
    def pid(self) -> int:
        return self._holder.pid

    def traffic(self) -> dict[str, int]:
        """Bytes that the node has received, sent and kept on loopback so far, by its own counters."""
        found = {"in": 0, "out": 0, "loopback": 0}
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()[2:]:
            name, _, counters = line.partition(":")
            received, sent = (int(number) for number in counters.split()[:9:8])
            if name.strip() == "lo":
                found["loopback"] += received
            else:
                found["in"], found["out"] = found["in"] + received, found["out"] + sent
        return found

    def close(self) -> None:
        assert self._holder.stdin is not None
        with suppress(OSError):
            self._holder.stdin.close()
        try:
            self._holder.wait(2.0)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
        for stream in (self._holder.stdout, self._holder.stderr):
            if stream is not None:
                stream.close()


def _run(words: Sequence[str]) -> None:
    command = " ".join(words[words.index("--") + 1 :] if "--" in words else words)
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_RUN_SECONDS)
    except subprocess.TimeoutExpired:
        raise VelodromeError(f"the emulated cluster cannot be changed: {command}: it did not end within "
                             f"{_RUN_SECONDS:g} s; is this machine busy?") from None
    if done.returncode:
        raise VelodromeError(f"the emulated cluster cannot be created: {command}: {done.stderr.strip()}")

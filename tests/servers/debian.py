"""Debian's packages for the servers of the tests. Needs the network and root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_POLICY = Path("/usr/sbin/policy-rc.d")
#: Another installation may be under way: apt waits for it.
_APT = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300")


def install(packages: Sequence[str]) -> None:
    """Install what is missing, with the list of packages brought up to date if need be, and start no service."""
    if not subprocess.run(["dpkg", "-s", *packages], capture_output=True, check=False).returncode:
        return
    quiet = not _POLICY.exists()
    if quiet:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    words = ["install", "--no-install-recommends", *packages]
    try:
        if _apt(words, check=False):
            _apt(["update"])
            _apt(words)
    finally:
        if quiet:
            _POLICY.unlink()


def _apt(words: Sequence[str], *, check: bool = True) -> int:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run([*_APT, *words], stdout=subprocess.DEVNULL, timeout=900, check=check, env=environment)
    return done.returncode

"""What sessions that ended without their guardian left below the agent's root, as after a reboot: found and removed."""

from __future__ import annotations

import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

#: In the folder of a session: one file for each host that has an agent of it, with the machine and the process.
_AGENT = ".agent-"
_CODE_SECONDS = 30 * 86400.0


def note_agent(folder: Path) -> None:
    """Note in the folder of a session that this process is an agent of it."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{_AGENT}{socket.gethostname()}").write_text(f"{_machine()}\n{os.getpid()}\n")


def remove_leftovers(root: Path) -> None:
    """Remove the folders of sessions whose agents are gone, and code that was not used for a month."""
    for folder in _inside(root / "sessions"):
        agents = list(folder.glob(f"{_AGENT}*"))
        if agents and all(_is_gone(agent, folder.name) for agent in agents):
            shutil.rmtree(folder, ignore_errors=True)
    for path in _inside(root / "code"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _CODE_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _inside(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _is_gone(agent: Path, session: str) -> bool:
    """Whether an agent ran on this machine and does so no more; the root may lie on a disk that several hosts share."""
    try:
        machine, pid = agent.read_text().split("\n")[:2]
    except (OSError, ValueError):
        return False
    if machine != _machine():
        return False
    try:
        return session.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _machine() -> str:
    """What tells this machine, and the processes that are seen from here, from others."""
    known = [socket.gethostname()]
    with suppress(OSError):
        known.append(Path("/etc/machine-id").read_text().strip())
    with suppress(OSError):
        known.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(known)

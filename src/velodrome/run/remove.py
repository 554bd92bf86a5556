"""Removes a run or a race permanently: never one that is running, never anything outside its folder."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from velodrome.errors import BadRequest, VelodromeError
from velodrome.run.listing import Found, scan
from velodrome.run.store import RunFolder


def refuse_running(found: Found) -> None:
    """Refuse a run or race that a controller is writing."""
    runs = scan(found.path) if found.kind == "race" else []
    for each in (found, *runs):
        if RunFolder(each.path).is_locked():
            raise BadRequest(f"{each.kind} {each.name!r} is running: end it first")


def remove_folder(found: Found, store: Path) -> None:
    """Remove a folder of the store: renamed first, so that nobody sees half of it."""
    if found.path.is_symlink() or not found.path.resolve().is_relative_to(store.resolve()):
        raise BadRequest(f"{str(found.path)!r} leads out of {str(store)!r}: remove it manually")
    refuse_running(found)
    aside = found.path.with_name(f".removed-{secrets.token_hex(4)}-{found.name}")
    try:
        found.path.rename(aside)
        shutil.rmtree(aside)  # removes links, not their targets
    except OSError as error:
        raise VelodromeError(f"cannot remove {str(found.path)!r}: {error.strerror or error}") from error

"""The operating system releases a lock whose holder was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from velodrome import files

pytestmark = pytest.mark.integration


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path; from velodrome.files import FileLock\n"
        f"lock = FileLock(Path({str(path)!r})); print(lock.acquire(), flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    assert files.is_locked(path)
    process.kill()
    process.communicate()
    assert not files.is_locked(path)
    assert files.FileLock(path).acquire()

"""Whatever carries a run's token ends, whichever session it fled to; whoever watches from outside can look into it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from velodrome.catalog.segments import pattern_of_run
from velodrome.clusters.interrupts import deferred
from velodrome.clusters.local.launcher import is_stopped, most_relevant_thread, shows_users_code, stack_of
from velodrome.clusters.local.processes import PADDING, TITLE_OPTIONS
from velodrome.clusters.remote.agent import cleaning
from velodrome.variables import NO_TOKEN

pytestmark = pytest.mark.integration

#: A process that starts another one in a session of its own, with no tie to it but the environment.
FLEEING = "import subprocess, time; subprocess.Popen(['sleep', '60'], start_new_session=True); time.sleep(60)"


@pytest.fixture
def token() -> Iterator[str]:
    token = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield token
    cleaning.end_all(cleaning.of_run, token)


def start(token: str) -> subprocess.Popen[bytes]:
    started = subprocess.Popen([sys.executable, "-c", FLEEING], env={**os.environ, "VELODROME_TOKEN": token})
    wait_until(lambda: len(cleaning.of_run(token)) == 2)
    return started


def wait_until(holds: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_all_marked_processes_end_and_no_other(token: str) -> None:
    other = start(token + "-other")
    mine = start(token)
    assert cleaning.end_all(cleaning.of_run, token) == []
    assert mine.wait(5) == -signal.SIGKILL
    assert len(cleaning.of_run(token + "-other")) == 2
    cleaning.end_all(cleaning.of_run, token + "-other")
    other.wait(5)


#: A process that was started as a template, became part of a run, and forked a copy that closed all it could and left.
FORKING = """
import os, sys, time
from velodrome.training.template import mark, show_command_line
show_command_line(["velodrome-template"])
if os.fork() == 0:
    mark(sys.argv[1])
    show_command_line(["python", "-m", "velodrome.training", "--role", "worker", "--rank", "1"])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 1000)
            time.sleep(60)
        os._exit(0)
    time.sleep(60)
time.sleep(60)
"""


def test_what_was_forked_from_a_template_is_found_and_ends_but_not_the_template(token: str) -> None:
    """Also a copy of a copy that closed its descriptors and left for another session."""
    environment = {**os.environ, **TITLE_OPTIONS, "VELODROME_TOKEN": NO_TOKEN}
    words = [sys.executable, "-c", FORKING, token, "x" * PADDING]
    started = subprocess.Popen(words, env=environment)
    try:
        def titles() -> list[bytes]:
            return [Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") for pid in cleaning.of_run(token)]

        wait_until(lambda: titles() == [b"python -m velodrome.training --role worker --rank 1"] * 2)
        assert cleaning.end_all(cleaning.of_run, token) == []
        assert started.poll() is None
    finally:
        started.kill()
        started.wait()


def test_forked_processes_are_found_without_setproctitle_too(token: str) -> None:
    without = "import sys; sys.modules['setproctitle'] = None\n" + FORKING
    environment = {**os.environ, "VELODROME_TOKEN": NO_TOKEN}
    started = subprocess.Popen([sys.executable, "-c", without, token], env=environment)
    try:
        wait_until(lambda: len(cleaning.of_run(token)) == 2)
        assert cleaning.end_all(cleaning.of_run, token) == []
    finally:
        started.kill()
        started.wait()


def test_the_guardian_ends_a_run_when_its_controller_is_gone(token: str) -> None:
    guardian = cleaning.start_guardian(token, pattern_of_run(token))
    mine = start(token)
    guardian.send_signal(signal.SIGINT)
    guardian.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert guardian.stdin is not None
    guardian.stdin.close()  # as the kernel does for a controller that is killed
    assert mine.wait(10) == -signal.SIGKILL
    assert guardian.wait(10) == 0
    assert cleaning.of_run(token) == []


@pytest.mark.parametrize("name", [pytest.param(None, id="by name"), pytest.param("mpich_renamed", id="by its holders")])
def test_the_guardian_removes_what_mpi_left_in_shared_memory(token: str, name: str | None) -> None:
    guardian = cleaning.start_guardian(token, pattern_of_run(token))
    left = Path("/dev/shm") / (f"{name}_{token}" if name else pattern_of_run(token).replace("*", "of-a-test"))
    left.touch()
    cleaning.dismiss(guardian)
    assert not left.exists()


def test_a_dismissed_guardian_leaves_at_once(token: str) -> None:
    guardian = cleaning.start_guardian(token, pattern_of_run(token))
    cleaning.dismiss(guardian)
    assert guardian.returncode == 0


def test_a_guardian_that_does_not_leave_is_ended(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guardian = cleaning.start_guardian(token, pattern_of_run(token))
    time.sleep(0.3)
    guardian.send_signal(signal.SIGSTOP)
    real = guardian.wait
    monkeypatch.setattr(guardian, "wait", lambda limit=None: real(0.2 if limit else None))
    cleaning.dismiss(guardian)
    assert guardian.returncode == -signal.SIGKILL


def test_the_stack_of_a_stopped_process_shows_the_line_it_stopped_in(tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text("import time\ndef waits_for_ever():\n    time.sleep(60)\nwaits_for_ever()\n")
    process = subprocess.Popen([sys.executable, str(script)])
    try:
        wait_until(lambda: "waits_for_ever" in stack_of(process.pid, sys.executable))
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
        stack = stack_of(process.pid, sys.executable)
        assert f"waits_for_ever ({script}:3)" in most_relevant_thread(stack)
        assert shows_users_code(stack)
    finally:
        process.kill()
        process.wait()


def test_a_stack_that_cannot_be_had_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert not is_stopped(gone.pid)
    assert stack_of(gone.pid, sys.executable).startswith("(no stack: ")
    assert not shows_users_code(stack_of(gone.pid, sys.executable))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "py-spy is not installed" in stack_of(1, "/no/such/python")
    monkeypatch.setattr(shutil, "which", lambda name: "/no/such/program")
    assert "No such file" in stack_of(1, "/no/such/python")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, as in a terminal: a shell that starts the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_signal_waits_until_the_work_is_done_and_then_counts() -> None:
    done = []

    def work() -> None:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            done.append("work")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["work"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with deferred():
        pass


def test_the_thread_in_the_users_code_is_shown_before_the_main_one() -> None:
    library = (
        "Process 1: python\nPython v3.11\n\n"
        f'Thread 1 (idle): "MainThread"\n    wait ({os.__file__}:5)\n'
    )
    users = library + 'Thread 2 (idle): "Dummy-1"\n    spring (/home/me/nets.py:7)\n'
    assert most_relevant_thread(library).startswith('Thread 1 (idle): "MainThread"')
    assert most_relevant_thread(users) == 'Thread 2 (idle): "Dummy-1"\n    spring (/home/me/nets.py:7)'
    assert most_relevant_thread("(no stack: gone)") == "(no stack: gone)"

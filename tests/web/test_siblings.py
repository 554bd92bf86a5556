"""Several processes that answer for one server of models: all of them do, and none outlives the first."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hostile_files import picture
from tiny_models import brightness
from velodrome.errors import BadRequest
from velodrome.web.server import listen

pytestmark = [
    pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="one process elsewhere"),
]
SECONDS = 60.0


class Server:
    """`velodrome serve` with two processes."""

    def __init__(self, runs: Path) -> None:
        words = ["serve", "brightness", "--runs", runs, "--port", 0, "--no-browser", "--processes", 2]
        self.first = subprocess.Popen([sys.executable, "-m", "velodrome", *map(str, words)], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, start_new_session=True)
        assert self.first.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line := self.first.stdout.readline())
        assert found, line
        self.address, self.port = found[0], int(found[1])
        until(lambda: self._listening() == 2, "both processes listen")
        [self.second] = psutil.Process(self.first.pid).children()

    def _listening(self) -> int:
        lines = Path("/proc/net/tcp").read_text().splitlines()
        return sum(f":{self.port:04X} 00000000:0000 0A" in line for line in lines)

    def answers(self, seconds: float = 20.0) -> bool:
        """Whether a request over a new connection is answered in time."""
        request = urllib.request.Request(f"{self.address}/api/predict", picture(colour=255),
                                         {"Content-Type": "image/png"})
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return b'"light"' in answer.read()
        except OSError:
            return False


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, f"not within {SECONDS:.0f} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    brightness(tmp_path)
    made = Server(tmp_path)
    yield made
    for process in (made.first.pid, made.second.pid):
        if psutil.pid_exists(process):
            psutil.Process(process).kill()
    made.first.wait(SECONDS)


def test_both_processes_answer_on_the_same_port(server: Server) -> None:
    for stopped in (psutil.Process(server.first.pid), server.second):
        assert all(server.answers() for _ in range(4))
        stopped.suspend()
        until(lambda: server.answers(0.5), "the other one answers")
        stopped.resume()


def test_a_process_that_dies_takes_nothing_with_it(server: Server) -> None:
    server.second.kill()
    until(lambda: server._listening() == 1, "its socket is closed")
    assert all(server.answers() for _ in range(20))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_first(server: Server, how: signal.Signals) -> None:
    server.first.send_signal(how)
    assert server.first.wait(SECONDS) in (130, -how)
    until(lambda: not server.second.is_running() or server.second.status() == psutil.STATUS_ZOMBIE, "it is gone")
    until(lambda: server._listening() == 0, "the port is free")


def test_a_shared_port_is_not_shared_with_another_server() -> None:
    with listen("127.0.0.1", 0, shared=True) as first:
        port = first.getsockname()[1]
        for shared in (True, False):
            with pytest.raises(BadRequest, match="choose another"):
                listen("127.0.0.1", port, shared=shared)
    listen("127.0.0.1", port, shared=True).close()

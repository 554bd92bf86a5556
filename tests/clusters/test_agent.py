"""The agent of a host: it starts processes, reports their lines and ends, moves files, and leaves nothing behind.

It runs here as a child with pipes, as SSH, Ray and Slurm run it elsewhere.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from velodrome.clusters.remote import channels
from velodrome.clusters.remote.agent import GREETING, Decoder, Files, Header, encode
from velodrome.clusters.remote.agent.cleaning import marked
from velodrome.clusters.remote.link import HostError, HostLost, Link
from velodrome.clusters.remote.starting import Code, send_code

pytestmark = pytest.mark.integration


class PipeChannel:
    """An agent as a child of this process."""

    def __init__(self, session: str, lease: float, root: Path, python: str = sys.executable) -> None:
        self.popen = subprocess.Popen(
            [python, *channels.agent_words(session, lease, str(root))], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, start_new_session=True,
        )

    def read(self) -> bytes:
        assert self.popen.stdout is not None
        return os.read(self.popen.stdout.fileno(), 1 << 16)

    def write(self, data: bytes) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(data)
        self.popen.stdin.flush()

    def end_reason(self) -> str:
        return "ended its stream"

    def close(self) -> None:
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):  # what is still buffered has no reader any more
            self.popen.stdin.close()
        self.popen.wait(10)


class Session:
    """An agent, the link to it, and what it reported."""

    def __init__(self, root: Path, lease: float = 30.0, python: str = sys.executable) -> None:
        self.name = secrets.token_hex(8)
        self.channel = PipeChannel(self.name, lease, root, python)
        self.link = Link("here", self.channel, 30.0, channels.agent_source())
        self.reports: list[tuple[Header, bytes]] = []
        self.link.take = lambda link, header, body: self.reports.append((header, body))
        self.link.wait_until_ready(30)

    def start(self, script: str, name: str = "worker-0", log: str = "log") -> int:
        folder = self.link.facts["folder"]
        answer, _ = self.link.ask(
            "start", id=name, token="1", words=["sh", "-c", script], environment={}, cwd="/",
            log=f"{folder}/{log}",
        )
        return int(answer["pid"])

    def lines(self) -> list[str]:
        text = [body.decode() for header, body in self.reports if header["is"] == "out"]
        return [line for part in text for line in part.split("\n")]

    def exits(self) -> list[int]:
        return [header["code"] for header, _ in self.reports if header["is"] == "exit"]


def eventually(holds: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path / "root")
    try:
        yield made
    finally:
        made.link.close()
        made.channel.popen.kill()
        eventually(lambda: not marked(made.name))


def test_frames_come_back_whole_however_they_are_cut_and_after_whatever_a_shell_printed() -> None:
    data = b"Welcome!\n" + GREETING + encode({"a": 1}, b"x" * 1000) + encode({"b": "ü"})
    decoder = Decoder(greeting=True)
    frames = [frame for at in range(0, len(data), 7) for frame in decoder.feed(data[at : at + 7])]
    assert frames == [({"a": 1}, b"x" * 1000), ({"b": "ü"}, b"")]
    with pytest.raises(ValueError, match="too long"):
        Decoder().feed(b"\xff" * 8)


def test_lines_come_whole_and_before_the_end_of_their_process(session: Session) -> None:
    session.start("printf 'one\\ntw'; sleep 0.2; printf 'o\\nrest'; exit 3")
    eventually(session.exits)
    assert session.lines() == ["one", "two", "rest"]
    assert session.exits() == [3]
    assert session.reports[-1][0]["is"] == "exit"


def test_the_end_of_the_stream_ends_everything_also_what_left_its_process_group(session: Session) -> None:
    session.start("setsid sleep 300 & sleep 300")
    eventually(lambda: len(marked(session.name)) >= 3)
    session.link.close()
    eventually(lambda: not marked(session.name))
    assert not Path(session.link.facts["folder"]).exists()


def test_a_killed_agent_takes_everything_with_it(session: Session) -> None:
    session.start("setsid sleep 300 & sleep 300")
    eventually(lambda: len(marked(session.name)) >= 3)
    session.channel.popen.send_signal(signal.SIGKILL)
    eventually(lambda: not marked(session.name))
    eventually(lambda: session.link.lost is not None)
    assert session.link.lost == "'here' ended its stream"


def test_an_agent_that_hears_nothing_for_its_lease_ends_itself(tmp_path: Path) -> None:
    silent = Session(tmp_path / "root", lease=2.0)
    silent.start("sleep 300")
    # Its controller is there but says nothing: a cut network.
    silent.link._lost = "cut"
    silent.link._out.put(b"")
    eventually(lambda: not marked(silent.name))
    silent.channel.popen.wait(10)


def test_an_agent_removes_what_agents_that_are_gone_left_and_nothing_else(session: Session, tmp_path: Path) -> None:
    root = tmp_path / "root"
    own = Path(session.link.facts["folder"])
    note = next(own.glob(".agent-*"))
    machine = note.read_text().split("\n")[0]
    for name, text in (("gone", f"{machine}\n{os.getpid()}\n"), ("elsewhere", f"another machine\n{os.getpid()}\n")):
        (root / "sessions" / name).mkdir()
        (root / "sessions" / name / note.name).write_text(text)
    (root / "sessions" / "unknown").mkdir()
    month = time.time() - 31 * 86400
    for name in ("old", "new", "used"):
        (root / "code" / name).mkdir(parents=True)
        (root / "code" / name / "a.py").write_text("")
        os.utime(root / "code" / name, (month, month) if name != "new" else None)
    # The first agent cleans up when it starts, too, and may find the folder before it is used.
    for _ in range(3):
        (root / "code" / "used").mkdir(exist_ok=True)
        if there := session.link.ask("has", path="code/used", use=True)[0]["there"]:
            break
    assert there
    next_one = Session(root)
    try:
        eventually(lambda: not (root / "sessions" / "gone").exists() and not (root / "code" / "old").exists())
        assert sorted(path.name for path in (root / "code").iterdir()) == ["new", "used"]
        left = {path.name for path in (root / "sessions").iterdir()}
        assert left == {"elsewhere", "unknown", session.name, next_one.name}
    finally:
        next_one.link.close()
        eventually(lambda: not marked(next_one.name))


def test_one_run_is_stopped_without_the_session(session: Session) -> None:
    pid = session.start("sleep 300")
    answer, _ = session.link.ask("stop", token="1", folder="", segments="")
    assert answer["left"] == 0
    eventually(lambda: session.exits() == [-9])
    assert not Path(f"/proc/{pid}").exists() or pid not in marked(session.name)
    assert session.link.ask("facts")[0]["cores"] >= 1


def test_files_go_there_and_come_back_each_once(session: Session, tmp_path: Path) -> None:
    folder = f"{session.link.facts['folder']}/run"
    content = os.urandom(700_000)
    assert Path(session.link.put(content, f"{folder}/checkpoints/epoch-0001.safetensors")).read_bytes() == content
    session.link.ask("known", folder=folder)
    (Path(folder) / "model").mkdir()
    (Path(folder) / "model" / "model.bin").write_bytes(content)
    (Path(folder) / "model" / "half.part").write_bytes(b"incomplete")
    answer, _ = session.link.ask("collect", token="t", folder=folder)
    assert answer["files"] == 1
    sent = [(header, body) for header, body in session.reports if header["is"] == "file"]
    assert {header["name"] for header, _ in sent} == {"model/model.bin"}
    assert b"".join(body for _, body in sent) == content


def test_a_watched_file_comes_while_the_run_goes_on(session: Session) -> None:
    folder = Path(session.link.facts["folder"]) / "run"
    (folder / "checkpoints").mkdir(parents=True)
    session.link.ask("watch", token="t", folder=str(folder), patterns=["checkpoints/*.safetensors"])
    (folder / "checkpoints" / "epoch-0001.safetensors").write_bytes(b"weights")
    eventually(lambda: any(header["is"] == "file" and header["last"] for header, _ in session.reports))


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="this machine has no Python of its distribution")
def test_the_python_of_a_distribution_serves_code_processes_and_files(tmp_path: Path) -> None:
    for name in ("nets.py", "package/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("made = 1\n")
    session = Session(tmp_path / "root", python="/usr/bin/python3")
    try:
        code = send_code(session.link, Code({name: tmp_path / name for name in ("nets.py", "package/__init__.py")}))
        assert (Path(code) / "package" / "__init__.py").read_text() == "made = 1\n"
        assert send_code(session.link, Code({"nets.py": tmp_path / "nets.py"})) != code
        session.start("echo hello")
        eventually(session.exits)
        assert session.lines() == ["hello"]
        assert session.link.ask("collect", token="1", folder=code)[0]["files"] == 2
        assert session.link.ask("diagnose", token="1", id="worker-0", brief=False, python=sys.executable)
    finally:
        session.link.close()
        eventually(lambda: not marked(session.name))


def test_a_command_has_a_limit_and_an_error_names_the_host(session: Session) -> None:
    assert session.link.run(["sh", "-c", "echo hello; exit 4"]).code == 4
    slow = session.link.run(["sleep", "60"], limit=0.5)
    assert slow.code is None
    assert "did not end within 0.5 s" in slow.errors
    assert session.link.run(["/no/such/program"]).code == 127
    with pytest.raises(HostError, match=r"'here': the agent knows no request 'dance'"):
        session.link.ask("dance")


def test_a_full_disk_is_reported_with_the_file(session: Session) -> None:
    with pytest.raises(HostError, match=r"'here': .*directory"):
        session.link.put(b"x", "/proc/no-such-place/file")


def _has_ipv6_loopback() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as trial:
        trial.bind(("::1", 0))
        return True
    return False


def test_ports_names_and_connections(session: Session) -> None:
    port = session.link.ask("listen", key="k")[0]["port"]
    assert port not in session.link.ask("ports", ports=[port], count=1)[0]["ports"]
    answer, _ = session.link.ask("connect", address="127.0.0.1", port=port, key="k", measure=0.2)
    assert 0 < answer["round_trip"] < 5
    assert answer["bandwidth"] > 1e6
    if socket.has_dualstack_ipv6() and _has_ipv6_loopback():
        assert session.link.ask("connect", address="::1", port=port, key="k")[0]["round_trip"] > 0
    assert session.link.ask("resolve", names=["localhost"])[0]["addresses"]["localhost"]
    with pytest.raises(HostError, match="refused"):
        session.link.ask("connect", address="127.0.0.1", port=1, key="k")


def test_a_port_that_measures_the_network_answers_who_has_the_key_and_listens_at_the_hosts_address(
    session: Session,
) -> None:
    port = session.link.ask("listen", address="127.0.0.1", key="of this check")[0]["port"]
    for said in (b"of that check", b"GET / HTTP/1.1\r\n", b"\0" * 100):
        with socket.create_connection(("127.0.0.1", port), 20) as stranger, suppress(ConnectionError):
            stranger.sendall(said + b"x")
            assert stranger.recv(1) == b""
    silent = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(50)]
    assert session.link.ask("connect", address="127.0.0.1", port=port, key="of this check")[0]["round_trip"] > 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 20)
    for quiet in silent:
        quiet.close()


def test_what_waits_for_a_lost_host_is_told(session: Session) -> None:
    session.channel.popen.kill()
    with pytest.raises(HostLost, match="'here'"):
        session.link.ask("facts", seconds=10)


class Mailbox:
    """An agent that serves files in a folder, as on a node of Slurm."""

    def __init__(self, folder: Path, lease: float) -> None:
        self.name, self.mail = secrets.token_hex(8), folder / "mail"
        self.mail.mkdir()
        self.heartbeat = self.mail / "heartbeat"
        inbox, outbox = self.mail / "in", self.mail / "out"
        self.popen = subprocess.Popen(
            [sys.executable, *channels.agent_words(self.name, lease, str(folder / "root"), str(inbox), str(outbox),
                                                   str(self.heartbeat))],
            stdin=subprocess.PIPE, start_new_session=True,
        )
        assert self.popen.stdin is not None
        self.popen.stdin.write(channels.agent_source())
        self.popen.stdin.flush()
        self._files, self._decoder = Files(outbox, inbox), Decoder(greeting=True)
        self.frames: list[tuple[Header, bytes]] = []

    def start(self, words: Sequence[str] = ("sleep", "300")) -> None:
        """Start a process, by default one that lasts, and say nothing any more."""
        request = {"do": "start", "n": 1, "id": "worker-0", "token": "1", "words": words, "environment": {},
                   "cwd": "/", "log": str(self.mail.parent / "log")}
        self._files.write(encode(request))
        eventually(lambda: self.frames.extend(self._decoder.feed(self._files.read())) or len(self.frames) >= 2)
        assert [header["is"] for header, _ in self.frames[:2]] == ["ready", "answer"]
        assert marked(self.name)


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Callable[[float], Mailbox]]:
    made: list[Mailbox] = []

    def make(lease: float) -> Mailbox:
        made.append(Mailbox(tmp_path, lease))
        return made[-1]

    yield make
    for one in made:
        one.popen.kill()
        one.popen.wait()
        eventually(lambda one=one: not marked(one.name))


def test_an_agent_serves_files_until_they_are_removed(mailbox: Callable[[float], Mailbox]) -> None:
    served = mailbox(600.0)
    served.start()
    shutil.rmtree(served.mail)
    assert served.popen.wait(20) == 0
    eventually(lambda: not marked(served.name))


def test_a_heartbeat_keeps_an_agent_without_a_controller_until_it_stops(mailbox: Callable[[float], Mailbox]) -> None:
    served = mailbox(3.0)
    served.start()
    for beat in range(8):
        served.heartbeat.write_text(str(beat))
        time.sleep(1.0)
        assert served.popen.poll() is None
    assert served.popen.wait(30) == 0
    eventually(lambda: not marked(served.name))


def test_a_heartbeat_alone_does_not_keep_an_agent_without_a_run(mailbox: Callable[[float], Mailbox]) -> None:
    served = mailbox(3.0)
    for beat in range(30):
        served.heartbeat.write_text(str(beat))
        time.sleep(0.5)
        if served.popen.poll() is not None:
            break
    assert served.popen.returncode == 0
    assert not marked(served.name)


def test_a_heartbeat_keeps_an_agent_whose_results_nobody_has_read(mailbox: Callable[[float], Mailbox]) -> None:
    served = mailbox(3.0)
    served.start(["sleep", "2"])
    for beat in range(8):
        served.heartbeat.write_text(str(beat))
        time.sleep(1.0)
        assert served.popen.poll() is None
    assert served.popen.wait(30) == 0


def test_time_in_which_an_agent_is_suspended_is_not_counted(mailbox: Callable[[float], Mailbox]) -> None:
    served = mailbox(3.0)
    served.start()
    served.popen.send_signal(signal.SIGSTOP)
    time.sleep(5.0)
    served.popen.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    assert served.popen.poll() is None
    assert served.popen.wait(30) == 0

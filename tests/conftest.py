"""What all tests share: an own network where root allows it, folders, and the command called in this process."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import signal
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from velodrome.catalog.exchange import mpi_fault

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def _own_network() -> bool:
    """Move this process, and so every process the tests start, into a network of its own with nothing but loopback.

    TensorFlow, PyTorch and MPI listen on all interfaces; here there is none that leads anywhere.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP))
    return True


def _own_shared_memory() -> bool:
    """Give this process, and every process the tests start, a `/dev/shm` of their own.

    Tests look there for what a run left behind, and must not find what other programs keep there meanwhile.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return False
    if libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        return False
    return bool(libc.mount(b"velodrome-test", b"/dev/shm", b"tmpfs", 0, None) == 0)


OWN_NETWORK = _own_network()
OWN_SHARED_MEMORY = OWN_NETWORK and _own_shared_memory()
ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"


def pytest_report_header() -> list[str]:
    of_us, of_all = "a namespace of our own", "this machine's (not root, so no namespace)"
    return [f"network: {of_us if OWN_NETWORK else of_all}", f"/dev/shm: {of_us if OWN_SHARED_MEMORY else of_all}"]


#: Seconds of each group of tests that takes long, by the run that stored them last (`make durations`).
DURATIONS = Path(__file__).with_name("durations.json")
#: Shorter groups are not stored: their order does not matter.
LEAST_SECONDS = 5.0
_group_seconds: Counter[str] = Counter()


#: Longer values of parameters are cut in the names of tests: names travel between processes, and some values have
#: megabytes.
LONGEST_ID = 200


def pytest_make_parametrize_id(val: object) -> str | None:
    """The part of a test's name that a value is, where pytest would write all of a long one."""
    if not isinstance(val, str | bytes) or len(val) <= LONGEST_ID:
        return None
    return f"{val[:20]!r}... of {len(val)}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store-durations", action="store_true", help=f"write {DURATIONS.name}, which sets the order")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called for all tests in the process that distributes them, which has their groups in their names."""
    _group_seconds[report.nodeid.rpartition("@")[2]] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--store-durations") and "PYTEST_XDIST_WORKER" not in os.environ:
        longest = {name: round(seconds) for name, seconds in _group_seconds.most_common() if seconds >= LEAST_SECONDS}
        DURATIONS.write_text(json.dumps(longest, indent=1) + "\n")


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    assert mark is not None
    return str(mark.args[0] if mark.args else mark.kwargs["name"])


def _mark_slow_rows(items: list[pytest.Item]) -> None:
    """Of a parametrized test that is marked `quick`, the rows with other names are slow."""
    quick: dict[str, bool] = {}
    for item in items:
        if (mark := item.get_closest_marker("quick")) is not None:
            name = item.nodeid.partition("[")[0]
            row = item.nodeid.partition("[")[2].removesuffix("]")
            is_quick = any(fnmatchcase(row, pattern) for pattern in mark.args)
            quick[name] = quick.get(name, False) or is_quick
            if not is_quick:
                item.add_marker(pytest.mark.slow)
    missing = [name for name, some in quick.items() if not some]
    if missing and not any("::" in word for word in items[0].config.args):
        raise pytest.UsageError(f"the mark `quick` names no row of {', '.join(missing)}")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is `unit` by default; `integration` and `e2e` tests start processes.

    With several pytest processes (`-n`), a module stays in one process, for what its tests share, unless its tests have
    groups of their own. The longest groups start first, then other tests that start processes: what starts last is
    quick, so that no process works alone at the end.
    """
    seconds: dict[str, int] = json.loads(DURATIONS.read_text())
    _mark_slow_rows(items)
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if not marks & {"unit", "integration", "e2e"}:
            item.add_marker(pytest.mark.unit)
        if "xdist_group" not in marks:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: (-seconds.get(_group(item), 0), item.get_closest_marker("unit") is not None))


#: What Python reports when a process is about to be started.
_PROCESS_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
_unit_test: str | None = None


def _refuse_processes(event: str, arguments: tuple[object, ...]) -> None:
    if _unit_test is not None and event in _PROCESS_EVENTS:
        raise AssertionError(f"{_unit_test} is marked `unit` and starts a process ({event}): mark it `integration`")


# Libraries that ask for the processor start a program for it, once.
platform.processor()
# So does the check whether MPI can be loaded.
mpi_fault()
sys.addaudithook(_refuse_processes)


@pytest.fixture(autouse=True)
def _denormals() -> None:
    """What the engine sets for its whole process, a test that ran its code here has left to the next one."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def _no_process_in_unit_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """The mark `unit` means that no process is started."""
    global _unit_test
    _unit_test = request.node.name if request.node.get_closest_marker("unit") else None
    yield
    _unit_test = None


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Quiet frameworks, and the mirror of real data sets if one lies beside the checkout."""
    before = dict(os.environ)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["COLUMNS"] = "160"
    os.environ["VELODROME_STRICT_EVENTS"] = "1"
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    if SHARED_DATA.is_dir():
        os.environ.setdefault("VELODROME_DATA_MIRROR", str(SHARED_DATA))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _probe_in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests start no process: what they ask the training interpreter, which is this one, is answered here, and no
    race is measured before it begins."""
    if request.node.get_closest_marker("unit"):
        from velodrome.clusters import environments
        from velodrome.races import plan
        from velodrome.training import probe

        monkeypatch.setattr(environments, "run_probe", lambda python, words: probe.reply(words))
        monkeypatch.setattr(plan, "worth_measuring", lambda *asked: False)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    def json(self) -> Any:
        return json.loads(self.out.strip().splitlines()[-1])


Command = Callable[..., Done]


@pytest.fixture
def velodrome(capfd: pytest.CaptureFixture[str]) -> Command:
    """Call the command in this process, so that coverage sees the controller; workers are real processes."""
    from velodrome.cli.main import main

    def call(*words: object) -> Done:
        capfd.readouterr()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return call


@pytest.fixture(scope="session")
def _warm_launcher() -> Iterator[Any]:
    from velodrome.clusters.local.launcher import LocalLauncher

    launcher = LocalLauncher()
    yield launcher
    launcher.close()


@pytest.fixture
def warm(_warm_launcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command fork training processes, as races do, from a process that imported the engine for all tests.

    For tests whose subject is not the start: an import takes longer than all they do.
    """
    start_warm(_warm_launcher, monkeypatch)


def start_warm(warm_launcher: Any, patch: pytest.MonkeyPatch) -> None:
    """Let all launchers of this machine start processes by this one."""
    from velodrome.clusters.local.launcher import LocalLauncher

    start_process = LocalLauncher.start_process

    def start(self: Any, plan: Any, *rest: Any, **options: Any) -> Any:
        warm_launcher.prepare([plan.job.engine])
        return start_process(warm_launcher, plan, *rest, **options)

    patch.setattr(LocalLauncher, "start_process", start)


@pytest.fixture(scope="module")
def warm_module(_warm_launcher: Any) -> Iterator[None]:
    """The same for all tests of a module and what they share."""
    with pytest.MonkeyPatch.context() as patch:
        start_warm(_warm_launcher, patch)
        yield


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that nobody else uses, as far as races can see: they repeat no run because of other programs."""
    from velodrome.races import runs as race_runs

    monkeypatch.setattr(race_runs, "is_loaded", lambda result: False)


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the processes of a job know one another by, for transports that are tested without a job."""
    monkeypatch.setenv("VELODROME_SECRET", "of these tests")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def no_strays(runs: Path) -> Iterator[None]:
    """After the test, no process may hold the run's folder in its command line."""
    yield
    marker = str(runs).encode()
    left = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if marker in line and int(entry.name) != os.getpid() and state != "Z":
            left.append(line.replace(b"\0", b" ").decode(errors="replace"))
    assert not left, f"left running: {left}"

"""Runs a script of the user in this process, as `python train.py` would, and takes what it reports."""

from __future__ import annotations
import __future__

import ast
import atexit
import builtins
import io
import os
import re
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from velodrome import figures
from velodrome.catalog.world import World
from velodrome.errors import BadRequest, PeerLost, PortTaken, RunFailed, ScriptFailed, headline
from velodrome.job.script import words_of
from velodrome.models.own import raised_in_library
from velodrome.training.context import Context
from velodrome.training.listening import EXPOSED, redirects
from velodrome.training.recorder import Recorder
from velodrome.training.sampler import computing
from velodrome.training.script_output import flush, read_output
from velodrome.transport.horovod_rendezvous import RendezvousServer, announce
from velodrome.transport.sockets import address_towards, interface_of
from velodrome.variables import FOLDER, SCRATCH, SEED

_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_LOST = re.compile(
    r"connection (closed|reset|refused|aborted)|broken pipe|socket closed|remote process exited|timed out waiting|peer",
    re.IGNORECASE,
)
#: TensorFlow's errors when another process has gone.
_LOST_KINDS = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
#: Bytes at the end of the log in which the last line is looked for.
_TAIL = 4_096


def run(context: Context) -> None:
    """Run the job's script to its end."""
    job, events = context.job, context.events
    assert job.script is not None
    path = Path(job.script).absolute()
    try:
        with io.open_code(str(path)) as stream:
            source = stream.read()
    except OSError as error:
        raise BadRequest(f"--script {job.script!r} cannot be read: {error.strerror}") from None
    os.environ[SEED], os.environ[FOLDER] = str(job.seed), str(context.folder.absolute())
    if scratch := os.environ.get(SCRATCH):
        enter_scratch(Path(scratch), context.folder)
    _choose_interface(context.world)
    if context.is_chief and len(context.world.members) > 1 and not redirects():
        events.emit("warning", message=EXPOSED)
    recorder = Recorder(context)
    with ExitStack() as stack:
        stack.enter_context(computing(context.status))
        if job.read and context.is_chief:
            stack.enter_context(read_output(job.read, recorder.log, events))
        stack.callback(figures.listen, None)
        figures.listen(recorder.log)
        if context.role == "worker":
            stack.enter_context(rendezvous(context.world, job.start_timeout))
        recorder.begin()
        try:
            words = [job.script, *words_of(job, context.world)]
            with _as_main(path, words) as module, _leaving_by_itself(recorder.finish):
                _execute(source, path, module, recorder.imported)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise ScriptFailed(_last_words(job.script, end.code)) from end
        except Exception as error:
            _translate(error, context.world)
            raise
    recorder.finish()


def _execute(source: bytes, path: Path, module: types.ModuleType, imported: Callable[[], None]) -> None:
    """Execute a script, and call `imported` when the imports at its beginning are over."""
    tree = ast.parse(source, str(path))
    end = _end_of_imports(tree.body)
    first, rest = (ast.Module(body, tree.type_ignores) for body in (tree.body[:end], tree.body[end:]))
    imports = compile(first, str(path), "exec", dont_inherit=True)
    # `from __future__` is for the whole file.
    code = compile(rest, str(path), "exec", imports.co_flags & _FUTURES, dont_inherit=True)
    exec(imports, module.__dict__)
    imported()
    exec(code, module.__dict__)


def _end_of_imports(body: list[ast.stmt]) -> int:
    """How many statements come up to the last import before the first function, class or loop."""
    end = 0
    for place, node in enumerate(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.While | ast.With):
            break
        inside = node.body if isinstance(node, ast.If | ast.Try) else [node]
        if any(isinstance(statement, ast.Import | ast.ImportFrom) for statement in inside):
            end = place + 1
    while end < len(body) and isinstance(node := body[end], ast.Expr) and isinstance(node.value, ast.Constant):
        end += 1  # a text that begins the second part would become the docstring of the module
    return end


@contextmanager
def _as_main(path: Path, words: list[str]) -> Iterator[types.ModuleType]:
    """The module `__main__` of a script, with the arguments and the path that Python would give it.

    When the block ends, threads that it started are waited for and its exit handlers run, as at the end of a program.
    """
    module = types.ModuleType("__main__")
    module.__dict__.update({"__file__": str(path), "__builtins__": builtins, "__cached__": None})
    kept = sys.argv, list(sys.path), sys.modules["__main__"]
    threads = set(threading.enumerate())
    sys.argv = words
    sys.path.insert(0, str(path.parent))
    sys.modules["__main__"] = module
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what it prints can be followed in the log
    try:
        with _exit_handlers():
            try:
                yield module
            finally:
                for thread in threading.enumerate():
                    if thread not in threads and not thread.daemon:
                        thread.join()
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = kept


@contextmanager
def _exit_handlers() -> Iterator[None]:
    """Run the exit handlers that the block registers when it ends: this process never exits in the ordinary way."""
    handlers: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
    register, unregister = atexit.register, atexit.unregister

    def add(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Callable[..., Any]:
        handlers.append((function, arguments, named))
        return function

    def remove(function: Callable[..., Any]) -> None:
        handlers[:] = [handler for handler in handlers if handler[0] != function]
        unregister(function)

    atexit.register, atexit.unregister = add, remove  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register, atexit.unregister = register, unregister
        while handlers:
            function, arguments, named = handlers.pop()
            function(*arguments, **named)


@contextmanager
def _leaving_by_itself(finish: Callable[[], None]) -> Iterator[None]:
    """Report the end also of a script that leaves by `os._exit(0)`, which ends a process at once."""
    leave, process = os._exit, os.getpid()

    def leave_after_report(status: int) -> None:
        if status == 0 and os.getpid() == process:
            with suppress(Exception):
                finish()
        leave(status)

    os._exit = leave_after_report  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave


def _choose_interface(world: World) -> None:
    """Let Gloo use the interface that leads to rank 0: by default it takes the one of the host's name."""
    first = world.peers[0]
    if interface := interface_of(address_towards(first.host, first.port)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("HOROVOD_GLOO_IFACE", interface)


def _last_words(script: str, code: Any) -> str:
    """Why a script ended by `sys.exit`: its message, or the last line of its log."""
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        return f"{script} ended with exit code 1: {headline(str(code))}"
    flush()
    line = ""
    with suppress(OSError):
        with open("/proc/self/fd/2", "rb") as log:  # noqa: PTH123 (not a path that pathlib could open otherwise)
            log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL))
            line = log.read(_TAIL).decode(errors="replace").strip().rpartition("\n")[2]
    return f"{script} ended with exit code {code}" + (f": {line[:200]}" if line else "")


def _translate(error: Exception, world: World) -> None:
    """Raise `PeerLost` or `PortTaken` in place of what a framework raised because of them."""
    text = str(error)
    if len(world.members) == 1 or not raised_in_library(error):
        return
    if "EADDRINUSE" in text or "address already in use" in text.lower():
        raise PortTaken(f"port {world.me.port} on {world.me.host} is taken: choose another one") from error
    if _LOST.search(text) or type(error).__name__ in _LOST_KINDS:
        raise PeerLost(f"lost another worker: {headline(text)}") from error


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
#: Operations on paths, and how many of their first arguments are what they change.
_CHANGES = {
    "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1, "os.link": 2, "os.symlink": 2,
    "os.chmod": 1, "shutil.rmtree": 1, "shutil.move": 2,
}


def enter_scratch(scratch: Path, run: Path) -> None:
    """Make a folder the current one, and refuse from now on to write outside of it, of the run's folder and of those
    that programs keep temporary files and caches in. The user's folder is none of those, wherever it lies.

    This is an audit hook of Python: what a library writes by itself to an absolute path is not refused.
    """
    users = _prefix(Path.cwd())
    os.chdir(scratch)
    sys.dont_write_bytecode = True
    home = os.path.realpath(Path.home())
    ours = _prefix(scratch), _prefix(run)
    shared = tuple(map(_prefix, (
        tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev", "/proc", os.environ.get("XDG_CACHE_HOME", "/dev"),
    )))

    def refuse(path: Any) -> None:
        if isinstance(path, int) or path is None:
            return
        real = os.path.realpath(os.fsdecode(path))
        place = f"{real}{os.sep}"
        if place.startswith(ours):
            return
        in_users = place.startswith(users) and users not in shared
        if in_users or not (place.startswith(shared) or real.startswith(f"{home}{os.sep}.")):
            raise PermissionError(f"velodrome check lets a script write to its scratch folder only, not to {real!r}")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING:
                refuse(path)
        elif event in _CHANGES:
            for path in arguments[: _CHANGES[event]]:
                refuse(path)

    sys.addaudithook(hook)


def _prefix(folder: str | Path) -> str:
    """What the real path of everything in a folder begins with."""
    return os.path.join(os.path.realpath(folder), "")  # noqa: PTH118 (with its last separator)


class _OnImport(MetaPathFinder):
    """Finds no module; calls `prepare` when Horovod is looked for."""

    def __init__(self, world: World, seconds: float) -> None:
        self._world, self._seconds = world, seconds
        self.prepared: RendezvousServer | None = None
        self._done = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name == "horovod" and not self._done:
            self._done = True
            first = self._world.peers[0]
            if self._world.me == first:
                self.prepared = RendezvousServer(first.host, first.port)
            else:
                wait_for(first.host, first.port, self._seconds)


def wait_for(host: str, port: int, seconds: float) -> None:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise RunFailed(f"rank 0 did not import Horovod within {seconds:g} s") from error
            time.sleep(0.05)
        else:
            return


@contextmanager
def rendezvous(world: World, seconds: float) -> Iterator[None]:
    """Provide the rendezvous to a script that imports Horovod during the block."""
    finder = _OnImport(world, seconds)
    announce(world.peers[0].host, world.peers[0].port)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.meta_path.remove(finder)
        if finder.prepared is not None:
            finder.prepared.stop()

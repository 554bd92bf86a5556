"""A process that has only imported an engine, from which training processes are forked: they start without the import.

The controller uses it through a socket: a request is one JSON message with three file descriptors (standard input,
output and error of the child); answers are `{"ready": true}` after the import, `{"pid": …}` for each request and, when
a child ends, `{"pid": …, "code": …}`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from velodrome.catalog.registry import engine_with_key
from velodrome.training.host import die_with_parent, limit_threads
from velodrome.variables import TOKEN

_MESSAGE = 1 << 20
_marks: list[mmap.mmap] = []


def show_command_line(words: list[str]) -> None:
    """Let tools that list processes show these words as the command line of this process, if setproctitle is there."""
    with suppress(ImportError):
        import_module("setproctitle").setproctitle(" ".join(words))


def mark(token: str) -> None:
    """Let the run's cleaner find this process, and whatever it forks, by the name of a mapping in `/proc/PID/maps`.

    The system shows only the environment that the template was started with. A mapping is inherited by a fork, and
    unlike a descriptor nobody closes it; a program that is executed has the token in its environment.
    """
    if not hasattr(os, "memfd_create"):
        return
    descriptor = os.memfd_create(f"velodrome-{token}")
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        _marks.append(mmap.mmap(descriptor, mmap.PAGESIZE))
    finally:
        os.close(descriptor)


def enter(holder: int, groups: list[str]) -> None:
    """Move this process onto an emulated host: into its control groups and the namespaces of its first process."""
    libc = ctypes.CDLL(None, use_errno=True)
    for group in groups:
        Path(group).write_text(str(os.getpid()))
    namespaces = [os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY) for name in ("net", "uts", "mnt")]
    for namespace in namespaces:
        if libc.setns(namespace, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)


def _become_child(request: dict[str, Any], descriptors: list[int], control: socket.socket) -> NoReturn:
    """In the child: take over the environment that the controller prepared, and train."""
    control.close()
    os.setsid()
    if "inside" in request:
        enter(**request["inside"])
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    mark(request["environment"][TOKEN])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    words = [sys.executable, "-P", "-m", "velodrome.training", *request["words"]]
    sys.argv = words[3:]
    show_command_line(words)
    from velodrome.training.__main__ import main

    main(request["words"])


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        control.send(json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def serve(control: socket.socket) -> None:
    """Fork a child for every request until the controller goes away."""
    woken, wake = os.pipe()
    for descriptor in (woken, wake):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    waiting = selectors.DefaultSelector()
    waiting.register(control, selectors.EVENT_READ)
    waiting.register(woken, selectors.EVENT_READ)
    while True:
        ready = [key.fileobj for key, _ in waiting.select()]
        if woken in ready:
            os.read(woken, 4096)
            _reap(control)
        if control in ready:
            message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE, 3)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                os.close(woken)
                os.close(wake)
                _become_child(json.loads(message), descriptors, control)
            for descriptor in descriptors:
                os.close(descriptor)
            control.send(json.dumps({"pid": pid}).encode())


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m velodrome.training.template")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--socket", required=True, type=int)
    parser.add_argument("padding", nargs="?")
    options = parser.parse_args()
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Children set their own number; libraries that decide once, at import, get the one that is always right.
    limit_threads(1)
    control = socket.socket(fileno=options.socket)
    show_command_line([sys.executable, "-P", "-m", "velodrome.training.template", "--engine", options.engine])
    import_module(engine_with_key(options.engine).worker)
    import_module("velodrome.training.__main__")
    gc.collect()
    gc.freeze()
    control.send(json.dumps({"ready": True}).encode())
    serve(control)
    os._exit(0)


if __name__ == "__main__":
    main()

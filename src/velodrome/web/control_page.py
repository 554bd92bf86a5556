"""Starts, stops and resumes races and runs: as processes of the same command that a person would type."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from velodrome import files
from velodrome.clusters.registry import DEFAULT
from velodrome.errors import BadRequest
from velodrome.run.listing import runs_of
from velodrome.run.store import LOCK, RunFolder
from velodrome.run.trust import OPTION
from velodrome.web import form
from velodrome.web.app import JsonAnswer, failure, page, race_of, run_of

#: Seconds within which a command that was started must have begun or ended; after that the page looks on.
_BEGIN_SECONDS = 90.0
#: Seconds that commands have to end after Ctrl-C before they are killed.
_END_SECONDS = 20.0
#: Bytes of a command's output that are read.
_MOST_OUTPUT = 64 << 10
#: Commands that may run at once.
MOST_AT_ONCE = 4
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Command:
    """A command that a page started."""

    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    output: Path

    def said(self) -> str:
        """The end of what it wrote."""
        try:
            with self.output.open("rb") as stream:
                stream.seek(max(0, self.output.stat().st_size - _MOST_OUTPUT))
                return _STYLE.sub("", stream.read().decode("utf-8", "replace"))
        except OSError:
            return ""

    def complaint(self) -> str:
        """Why it ended, in its own words."""
        said = self.said().strip()
        _, found, own = said.rpartition("velodrome: ")
        text = own if found else said.rpartition("\n")[2]
        return text or f"the command ended with exit code {self.process.returncode}"


@dataclass
class Control:
    """The commands that this server started. They end with it."""

    runs: Path
    commands: list[Command] = field(default_factory=list)
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, words: Sequence[str]) -> Command:
        """Start `velodrome WORDS`, detached from the terminal, with its output in a file."""
        self.commands = [command for command in self.commands if command.process.poll() is None]
        if len(self.commands) >= MOST_AT_ONCE:
            raise BadRequest(f"{MOST_AT_ONCE} commands of this page are running already: wait for one, or stop it")
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="velodrome-ui-")
        handle, name = tempfile.mkstemp(dir=self._folder.name, suffix=".log")
        environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "velodrome", *words], stdin=subprocess.DEVNULL, stdout=handle,
                stderr=handle, start_new_session=True, env=environment,
            )
        finally:
            os.close(handle)
        command = Command(tuple(words), process, Path(name))
        self.commands.append(command)
        return command

    async def begun(self, command: Command, folder: Path) -> bool:
        """Wait until a command holds a folder; False if it ended before. True as well if that takes very long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _BEGIN_SECONDS
        while loop.time() < end:
            if command.process.poll() is not None:
                return command.process.returncode == 0
            if RunFolder(folder).is_locked():
                return True
            await asyncio.sleep(0.2)
        return True

    def stop(self, folder: Path) -> None:
        """Press Ctrl-C for the command that holds a run or race, whoever started it."""
        process = _holder(folder)
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End what this server started: Ctrl-C first, and the end of what does not obey."""
        running = [command.process for command in self.commands if command.process.poll() is None]
        for process in running:
            with suppress(OSError):
                process.send_signal(signal.SIGINT)
        for process in running:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)
        if self._folder is not None:
            self._folder.cleanup()


def _holder(folder: Path) -> psutil.Process:
    """The process that holds a run or race; refused if that is not surely one of ours."""
    locked = [path for path in (folder, *_inside(folder)) if RunFolder(path).is_locked()]
    if not locked:
        raise BadRequest(f"{folder.name!r} is not running")
    for path in locked:
        try:
            number = int(files.read_text(path / LOCK, 64, inside=path).strip())
            process = psutil.Process(number)
            is_ours = "velodrome" in " ".join(process.cmdline()) and process.uids().real == os.getuid()
        except (OSError, ValueError, psutil.Error):
            continue
        if is_ours and number != os.getpid():
            return process
    raise BadRequest(f"the process that runs {folder.name!r} cannot be found here: press Ctrl-C where it was started")


def _inside(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [path.parent for path in folder.glob(f"*/{LOCK}")]
    return []


#: Seconds to send the fields of a form.
_BODY_SECONDS = 20.0


async def show(request: Request) -> Response:
    if request.app.state.security.read_only:
        raise HTTPException(403, "This server was started with --read-only: it shows, and starts nothing.")
    known = {field.name for group in form.groups() for field in group.fields}
    given = {name: value for name, value in request.query_params.items() if name in known}
    return page(request, "new.html", groups=form.groups(), given=given, folder=str(request.app.state.runs))


async def _fields(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "Send the fields as application/json.")
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = await request.body()
    except TimeoutError:
        raise HTTPException(408, "The request took too long to send.") from None
    except ClientDisconnect:
        raise HTTPException(413, "The request is larger than this server takes, or was cut off.") from None
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "The fields are not JSON.") from None
    if not isinstance(given, dict):
        raise HTTPException(400, "Send the fields as one JSON object.")
    return given


async def check(request: Request) -> Response:
    """What a form stands for, while it is filled in. Starts nothing."""
    given = await _fields(request)
    return JsonAnswer((await run_in_threadpool(form.check, given, request.app.state.runs)).as_json())


async def start(request: Request) -> Response:
    given = await _fields(request)
    runs: Path = request.app.state.runs
    checked = await run_in_threadpool(form.check, given, runs)
    if checked.errors or checked.name is None:
        return JsonAnswer({**checked.as_json(), "error": "The race was not started."}, 422)
    control: Control = request.app.state.control
    if RunFolder(runs / checked.name).is_locked():
        errors = {"name": f"The race {checked.name!r} is running already."}
        return JsonAnswer({**checked.as_json(), "errors": errors, "error": "The race was not started."}, 409)
    # In this thread: a process dies with the thread that started it if it asks for that.
    command = control.start(checked.words)
    if not await control.begun(command, runs / checked.name):
        complaint = command.complaint()
        return JsonAnswer(
            {**checked.as_json(), "errors": form.errors_of(complaint), "error": "The race was not started."}, 422,
        )
    return JsonAnswer({**checked.as_json(), "address": f"/races/{checked.name}"}, 202)


async def stop_race(request: Request) -> Response:
    found = await run_in_threadpool(race_of, request)
    return await _stop(request, found.path)


async def stop_run(request: Request) -> Response:
    found = await run_in_threadpool(run_of, request)
    return await _stop(request, found.path)


async def _stop(request: Request, path: Path) -> Response:
    await run_in_threadpool(request.app.state.control.stop, path)
    return JsonAnswer({"stopping": path.name}, 202)


def _elsewhere(path: Path) -> str | None:
    """The launcher of runs that did not run simply on this machine; None if all did."""
    folders = [path] if (path / "job.yaml").exists() else [one.path for one in runs_of(path)]
    results = [RunFolder(folder).result() for folder in folders]
    launchers = {result.launcher or DEFAULT for result in results if result is not None}
    return next((name for name in sorted(launchers) if name != DEFAULT), None)


async def resume_race(request: Request) -> Response:
    found = await run_in_threadpool(race_of, request)
    words = ["race", str(found.path / "race.yaml"), f"--name={found.name}", f"--runs={request.app.state.runs}"]
    return await _resume(request, found.path, words)


async def resume_run(request: Request) -> Response:
    found = await run_in_threadpool(run_of, request)
    return await _resume(request, found.path, ["resume", found.name, f"--runs={found.path.parent}"])


async def _resume(request: Request, path: Path, words: list[str]) -> Response:
    control: Control = request.app.state.control
    if (elsewhere := await run_in_threadpool(_elsewhere, path)) is not None:
        return failure(request, 409, f"{path.name!r} ran on {elsewhere!r}, and where exactly is not stored: resume it "
                       "with the command that started it.")
    if RunFolder(path).is_locked():
        return failure(request, 409, f"{path.name!r} is running already.")
    command = control.start(words)
    if not await control.begun(command, path):
        complaint = command.complaint()
        if OPTION in complaint:  # code that is not trusted: a page runs none
            complaint += f" to this command in a terminal: {shlex.join(['velodrome', *words])}"
        return failure(request, 422, complaint)
    return JsonAnswer({"resumed": path.name}, 202)


ROUTES = (
    Route("/new", show), Route("/api/check", check, methods=["POST"]), Route("/api/races", start, methods=["POST"]),
    Route("/api/races/{race}/stop", stop_race, methods=["POST"]),
    Route("/api/races/{race}/resume", resume_race, methods=["POST"]),
    Route("/api/runs/{run}/stop", stop_run, methods=["POST"]),
    Route("/api/runs/{run}/resume", resume_run, methods=["POST"]),
    Route("/api/runs/{race}/{run}/stop", stop_run, methods=["POST"]),
    Route("/api/runs/{race}/{run}/resume", resume_run, methods=["POST"]),
)

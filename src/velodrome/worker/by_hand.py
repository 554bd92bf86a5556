"""A process that a person started: its events stay in the run's folder here, and the person sees the essence."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from velodrome.cluster.plan import make_plan
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events.lines import Kind, parse
from velodrome.offers.models import is_text
from velodrome.run.outcome import Failure, make_result
from velodrome.run.store import Status, write_whole
from velodrome.spec.job import Job
from velodrome.tasks.quality import in_words
from velodrome.variables import JOB
from velodrome.worker.context import Context
from velodrome.worker.emitter import Emitter


class ByHand(Emitter):
    """Writes events to a file of its own and tells a person what happens."""

    def __init__(self, folder: Path, role: str, rank: int) -> None:
        if (folder / "result.json").exists():
            raise BadRequest(f"--run {folder.name!r}: {folder} holds a run already, and none is ever overwritten")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadRequest(f"--folder {str(folder)!r}: cannot write there: {error.strerror}") from None
        self.path = folder / f"events-{role}-{rank}.jsonl"
        self._who = f"{role} {rank}"
        self._text = _reads_text()
        super().__init__(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), role, rank)

    def emit(self, kind: Kind, **fields: Any) -> None:
        super().emit(kind, **fields)
        line = _sentence(kind, fields, text=self._text)
        if line:
            print(f"{self._who}: {line}", file=sys.stderr, flush=True)


def _reads_text() -> bool:
    """Whether this process trains a language model; a job that cannot be read is refused where it is taken up."""
    with suppress(KeyError, ValueError, VelodromeError):
        return is_text(Job.model_validate_json(os.environ[JOB]).model)
    return False


def _sentence(kind: Kind, fields: dict[str, Any], *, text: bool) -> str | None:
    if kind == "phase" and fields["state"] == "begin" and "epoch" not in fields:
        return f"{fields['phase']} …"
    if kind == "epoch":
        parts = {part: in_words(fields[part], text=text) for part in ("train", "validation")}
        return f"epoch {fields['epoch']}: " + ", ".join(f"{part} {said}" for part, said in parts.items() if said)
    if kind == "result":
        test = fields["test"]
        counted = f"{test['total']:,} words" if text else f"{test['correct']} of {test['total']}"
        return f"test {in_words(test, text=text)} ({counted})"
    if kind in ("error", "warning"):
        return f"{kind}: {fields['message']}"
    return None


def finish(run: str, context: Context, hosts: list[str], status: Status) -> None:
    """In the chief: put the result together from the events that are on this host."""
    plan = make_plan(run, context.job, hosts, port=lambda: 0)
    events: list[dict[str, Any]] = []
    for path in sorted(context.folder.glob("events-*.jsonl")):
        events += filter(None, map(parse, path.read_text(encoding="utf-8", errors="replace").splitlines()))
    events.sort(key=lambda event: event["time"])
    started = events[0]["time"] if events else time.time()
    own_error = [event for event in events if event["kind"] == "error" and event["role"] == context.role]
    failure = None
    if status != "finished":
        message = own_error[-1]["message"] if own_error else status
        me = plan.chief
        failure = Failure(f"{me.name} on {me.host}: {message}", me.role, me.rank, me.host)
    result = make_result(
        plan, str(context.folder.resolve()), status, events, started=started, ended=time.time(), failure=failure
    )
    write_whole(context.folder / "job.yaml", yaml.safe_dump(context.job.model_dump(), sort_keys=False))
    write_whole(context.folder / "result.json", json.dumps(result, indent=2) + "\n")
    print(f"{plan.chief.name}: how it ended is in {context.folder / 'result.json'}", file=sys.stderr, flush=True)

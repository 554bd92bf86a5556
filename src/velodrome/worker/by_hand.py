"""A process that a person started: its events stay in the run's folder here, and the person sees the essence."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from velodrome.cluster.plan import make_plan
from velodrome.run.outcome import make_result
from velodrome.run.store import write_whole
from velodrome.worker.context import Context
from velodrome.worker.events import PREFIX, Emitter, Kind


class ByHand(Emitter):
    """Writes events to a file of its own and tells a person what happens."""

    def __init__(self, folder: Path, role: str, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events-{role}-{rank}.jsonl"
        self._who = f"{role} {rank}"
        super().__init__(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), role, rank)

    def emit(self, kind: Kind, **fields: Any) -> None:
        super().emit(kind, **fields)
        line = _sentence(kind, fields)
        if line:
            print(f"{self._who}: {line}", file=sys.stderr, flush=True)


def _sentence(kind: Kind, fields: dict[str, Any]) -> str | None:
    if kind == "phase" and fields["state"] == "begin" and "epoch" not in fields:
        return f"{fields['phase']} …"
    if kind == "epoch":
        train, validation = fields["train"], fields["validation"]
        line = f"epoch {fields['epoch']}: train accuracy {train['correct'] / train['total']:.4f}"
        if validation["total"]:
            line += f", validation accuracy {validation['correct'] / validation['total']:.4f}"
        return line
    if kind == "result":
        test = fields["test"]
        return f"test accuracy {test['correct'] / test['total']:.4f} ({test['correct']} of {test['total']})"
    if kind in ("error", "warning"):
        return f"{kind}: {fields['message']}"
    return None


def finish(run: str, context: Context) -> None:
    """In the chief: put the result together from the events that are on this host."""
    plan = make_plan(run, context.job, hosts=["by hand"], port=lambda: 0)
    events = []
    for path in sorted(context.folder.glob("events-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(PREFIX) and line.endswith("}"):
                events.append(json.loads(line[len(PREFIX) :]))
    events.sort(key=lambda event: event["time"])
    started = events[0]["time"] if events else time.time()
    result = make_result(plan, str(context.folder), "finished", events, started=started, ended=time.time())
    write_whole(context.folder / "result.json", json.dumps(result, indent=2) + "\n")
    print(f"chief: result in {context.folder / 'result.json'}", file=sys.stderr, flush=True)

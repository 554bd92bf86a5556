"""The faults of one attempt, by the clock: when each begins and ends, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from velodrome.clusters.launcher import Exit, Group
from velodrome.clusters.plan import Plan, Process
from velodrome.events.lines import make_event
from velodrome.events.models import Event, PhaseEvent
from velodrome.job.faults import Fault, parse_fault


@dataclass
class _Entry:
    fault: Fault
    processes: list[Process]
    began: bool = False
    ended: bool = False


class FaultSchedule:
    """Breaks what a job asks for, counting from the first process that begins to train."""

    def __init__(self, plan: Plan) -> None:
        members = [(process.role, process.rank, process.host) for process in plan.processes]
        self._entries = []
        for fault in map(parse_fault, plan.job.faults):
            meant = fault.processes(members)
            found = [process for process in plan.processes if (process.role, process.rank) in meant]
            self._entries.append(_Entry(fault, found))
        self._origin: float | None = None

    def see(self, event: Event, now: float) -> None:
        """Note the beginning of training."""
        if self._origin is None and isinstance(event, PhaseEvent) and event.phase in ("train", "script"):
            self._origin = now

    def advance(self, group: Group, now: float) -> list[Event]:
        """Begin and end what is due; the events of it."""
        if self._origin is None:
            return []
        events, since = [], now - self._origin
        for entry in self._entries:
            fault = entry.fault
            if not entry.began and since >= fault.start:
                entry.began = True
                group.begin_fault(fault, entry.processes)
                events.append(_event(entry, "begin"))
            if entry.began and not entry.ended and fault.end is not None and since >= fault.end:
                entry.ended = True
                group.end_fault(fault, entry.processes)
                events.append(_event(entry, "end"))
        return events

    def explain(self, process: Process, end: Exit) -> Exit:
        """How a process ended, with the fault that ended it as the cause."""
        for entry in self._entries:
            if entry.fault.action == "kill" and entry.began and process in entry.processes and end.signal == "SIGKILL":
                return replace(end, cause=f"was ended by SIGKILL: --fault {entry.fault.text!r}")
        return end

    def missed(self) -> list[Event]:
        """Warnings of those that did not begin before training was over."""
        return [
            make_event("warning", message=f"--fault {entry.fault.text!r} did not happen: training was over before")
            for entry in self._entries if not entry.began
        ]


def _event(entry: _Entry, state: str) -> Event:
    fault, host = entry.fault, entry.processes[0].host if entry.processes else entry.fault.target
    more: dict[str, Any] = {} if fault.factor is None else {"factor": fault.factor}
    return make_event("fault", state=state, fault=fault.text, action=fault.action, target=fault.target, host=host,
                      **more)

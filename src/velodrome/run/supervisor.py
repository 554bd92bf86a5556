"""Supervises one attempt at a plan: starts its group, records its events, notices which process dies, stalls or never
connects, and stops everything. Knows processes only through their group."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from velodrome.catalog.registry import strategy_of
from velodrome.clusters.interrupts import Patience, deferred
from velodrome.clusters.launcher import Exit, Group, Launcher
from velodrome.clusters.plan import Plan, Process
from velodrome.errors import VelodromeError
from velodrome.events import make_event, parse_event
from velodrome.events.models import Event, PhaseEvent, ResultEvent
from velodrome.job.values import Fault, parse_fault
from velodrome.run.processes import (
    SILENT_SECONDS,
    Failure,
    ProcessState,
    awaited,
    not_connected,
    root_cause,
    script_is_over,
    stalled,
)
from velodrome.run.state import RunState
from velodrome.run.store import OpenRun


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
            targets = [process for process in plan.processes if (process.role, process.rank) in meant]
            self._entries.append(_Entry(fault, targets))
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


#: Called with each event, and with the state of the run after it.
Listener = Callable[[RunState, Event], None]
#: Asked several times a second whether to end the run: what is then recorded as the reason, else None.
Stop = Callable[[RunState], Failure | None]
#: What distinguishes the events of a run.
EventKey = tuple[object, ...]

#: How long one wait for output lasts at most.
WAIT_SECONDS = 0.2
#: Many processes report at many moments. They are looked at together, so many seconds per process apart, or looking at
#: all of them after every line would take time that grows with the square of their number.
REST_SECONDS, MOST_REST_SECONDS = 0.001, 0.2
#: How long processes may take to end after the chief has reported the result.
LEAVE_SECONDS = 10.0
#: How many processes are diagnosed in full: each takes a moment.
MOST_DIAGNOSES = 4
#: How many ranks of a script: only their stacks tell which one the others wait for.
MOST_RANKS_OF_SCRIPT = 16


def never(state: RunState) -> None:
    """Do not end a run before its time."""


def silent(state: RunState, event: Event) -> None:
    """Listen to nothing."""


def event_key(event: Event) -> EventKey:
    # A phase may end at the moment at which the next one begins.
    return event.time, event.kind, event.role, event.rank, *(getattr(event, name, "") for name in ("phase", "state"))


class Supervisor:
    """Supervises one attempt at a plan from start to end."""

    def __init__(
        self, run: OpenRun, plan: Plan, launcher: Launcher, listener: Listener = silent, state: RunState | None = None,
        *, resume: bool = False, attached: bool = False, known: Collection[EventKey] = (), stop: Stop = never,
    ) -> None:
        """`state` is that of the run so far. If `attached`, the processes run already, and may report again `known`
        events, which an earlier controller has recorded."""
        self._state = state or RunState.of(plan, run.now())
        self._stop = stop
        self._run, self._plan, self._launcher, self._listener = run, plan, launcher, listener
        self._resume, self._attached, self._known = resume, attached, known
        self._states: dict[Process, ProcessState] = {}
        self._result_time: float | None = None
        self._synchronous = strategy_of(plan.job).synchronous
        #: A run that continues after a fault is not given the same one again.
        self._faults = None if resume or not plan.job.faults else FaultSchedule(plan)

    def watch(self) -> Failure | None:
        """Run the plan to its end; what ended it early, or None. Whatever happens, nothing is left running."""
        group = self._launcher.start(self._plan, self._run.path, resume=self._resume)
        uncollected: Failure | None = None
        interrupted = False
        try:
            self._states = {state.process: state for state in self._state.processes_of(self._plan)}
            since = self._state.started if self._attached else None
            for process, state in self._states.items():
                state.start(process, self._run.now(), math.inf if since is None else since)
            failure = self._loop(group)
            for event in self._faults.missed() if self._faults is not None and failure is None else ():
                self._record(event)
        except (KeyboardInterrupt, SystemExit):
            interrupted = True
            raise
        finally:
            with deferred() as signals:
                try:
                    self._count_traffic(group)
                    if self._run.is_in_place:
                        uncollected = self._collect(group, Patience(signals, interrupted=interrupted))
                finally:
                    group.stop()
        return failure or uncollected

    def _loop(self, group: Group) -> Failure | None:
        rest = min(MOST_REST_SECONDS, REST_SECONDS * len(self._states)) if len(self._states) > 8 else 0.0
        while True:
            time.sleep(rest)
            group.wait(WAIT_SECONDS, self._deliver)
            self._run.check_place()
            now = self._run.now()
            for process, state in self._states.items():
                if state.alive and (end := group.exit_of(process)) is not None:
                    state.record_exit(end if self._faults is None else self._faults.explain(process, end), now)
            if self._result_time is not None and self._plan.job.script is None:
                if self._all_left(now):
                    return None
                continue
            if self._result_time is not None and script_is_over(self._states.values()):
                return None
            for event in () if self._faults is None else self._faults.advance(group, now):
                self._record(event)
            self._continue_without_lost()
            if (failure := self._stop(self._state) or self._judge(group, now)) is not None:
                return failure

    def _judge(self, group: Group, now: float) -> Failure | None:
        """What ends the run early at this moment, if anything."""
        present = [state for state in self._states.values() if not state.lost]
        if not any(state.failed for state in present):
            job = self._plan.job
            late = not_connected(present, job.start_timeout, now)
            held_up = stalled(present, job.stall_timeout, now)
            if late:
                what = f"did not connect within {job.start_timeout:g} s (--start-timeout)"
                return self._name(group, late, what, "start")
            if held_up:
                what = f"made no progress for {job.stall_timeout:g} s (--stall-timeout)"
                return self._name(group, held_up, what, "stall")
            return None
        over = not any(state.alive for state in present)
        failure = root_cause(present) if over else root_cause(present, now)
        if failure is not None and failure.cause == "peer":
            # A process that lost a peer is not the cause; one that lives but does not answer is.
            silent = [state for state in present if state.alive and state.is_silent(SILENT_SECONDS, now)]
            silent = silent or self._cut_off(group)
            return self._name(group, silent, "did not answer", "stall") if silent else failure
        return failure

    def _cut_off(self, group: Group) -> list[ProcessState]:
        """The processes whose host is known to be out of the others' reach."""
        alive = [state for state in self._states.values() if state.alive]
        return [state for state in alive if group.diagnose(state.process, brief=True).cut_off]

    def _deliver(self, process: Process, line: str) -> None:
        event = parse_event(line)
        if event is None:
            with (self._run.path / "logs" / f"{process.file_name}.log").open("a") as log:
                log.write(line + "\n")
            return
        now = self._run.now()
        if self._faults is not None:
            self._faults.see(event, now)
        if isinstance(event, ResultEvent):
            self._result_time = now
        if event_key(event) not in self._known:
            self._record(event, self._states[process])

    def _record(self, event: Event, process: ProcessState | None = None) -> None:
        event = event.model_copy(update={"received": round(self._run.now(), 4)})
        self._run.add_event(event)
        self._state.add(event, process=process)
        self._listener(self._state, event)

    def _continue_without_lost(self) -> None:
        """With --keep-going, a worker may fail while another one is left."""
        if not self._plan.job.keep_going:
            return
        workers = [state for state in self._states.values() if state.process.role == "worker"]
        for state in workers:
            if not state.failed or state.lost:
                continue
            left = [worker for worker in workers if worker.alive and not worker.failed]
            if left:
                state.lost = True
                why = failure.message if (failure := root_cause([state])) else str(state)
                message = f"{why}; the run continues with {len(left)} worker{'s' if len(left) > 1 else ''}"
                self._record(make_event("lost", role=state.process.role, rank=state.process.rank, message=message))

    def _all_left(self, now: float) -> bool:
        """After the result: whether every process has ended, or has had the time to."""
        assert self._result_time is not None
        awaited = [state for process, state in self._states.items()
                   if state.alive and (self._synchronous or process == self._plan.chief)]
        return not awaited or now - self._result_time > LEAVE_SECONDS

    def _name(self, group: Group, culprits: list[ProcessState], what: str, cause: str) -> Failure:
        """The failure of those that hold up the others; where events cannot distinguish them, a diagnosis may."""
        alive = [state for state in self._states.values() if state.alive]
        stopped = [state for state in alive if group.diagnose(state.process, brief=True).stopped]
        certain = stopped or self._cut_off(group)
        culprits = certain or culprits
        looked_at = culprits[:MOST_DIAGNOSES]
        # How many steps a rank of a script reports says nothing: often only the first one reports any.
        by_stacks = self._plan.job.script is not None and cause == "stall" and not certain \
            and not any(state.is_silent(SILENT_SECONDS, self._run.now()) for state in culprits)
        if by_stacks:
            others = [state for state in alive if state not in looked_at and not state.only_serves]
            looked_at += others[:MOST_RANKS_OF_SCRIPT]
        diagnoses = {state.process: group.diagnose(state.process) for state in looked_at}
        for process, diagnosis in diagnoses.items():
            with suppress(OSError):
                (self._run.path / "logs" / f"{process.file_name}.stack.txt").write_text(diagnosis.text + "\n")
        waiting: list[ProcessState] = []
        if by_stacks and (those := awaited(looked_at, diagnoses)):
            culprits, waiting = those, [state for state in looked_at if state not in those]
        culprits = [state for state in culprits
                    if state.process in diagnoses and diagnoses[state.process].in_user_code] or culprits
        first = culprits[0]
        names = ", ".join(map(str, culprits))
        cut = f"{first.process.host} is cut off from the others; " if diagnoses[first.process].cut_off else ""
        if waiting:
            what += f", and {', '.join(state.process.name for state in waiting)} wait{'s' * (len(waiting) == 1)} for it"
        stacks = [diagnoses[first.process].excerpt,
                  *(f"{state.process.name} waits for it:\n{diagnoses[state.process].excerpt}" for state in waiting[:1])]
        return Failure(
            f"{names} {what}: {cut}{first.describe_last_event(self._run.now())}", *first.key, first.process.host,
            cause=cause, stack="\n\n".join(filter(None, stacks)),
        )

    def _count_traffic(self, group: Group) -> None:
        """Record what each host exchanged, where the group can tell."""
        with suppress(OSError, VelodromeError):
            for host, network in group.traffic().items():
                self._record(make_event("traffic", host=host, network=dict(network)))

    def _collect(self, group: Group, patience: Patience) -> Failure | None:
        try:
            group.collect(patience.is_over)
        except (OSError, VelodromeError) as error:
            return Failure(f"model, checkpoints or logs could not be collected: {error}", cause="collect")
        finally:
            for sentence in group.warnings():
                self._record(make_event("warning", message=sentence))
        return None

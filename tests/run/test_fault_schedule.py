"""Faults happen when they were asked for, counted from the beginning of training, and are blamed for their effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from velodrome.clusters.launcher import Exit
from velodrome.clusters.plan import Plan, Process, make_plan
from velodrome.events import make_event
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.job.values import Fault
from velodrome.run.state import RunState
from velodrome.run.supervisor import FaultSchedule

pytestmark = pytest.mark.unit


def plan_with(*faults: str) -> Plan:
    job = resolve(Job(engine="torch", strategy="ddp", workers=2, faults=list(faults)))
    return make_plan("a", job, ("node1", "node2"))


@dataclass
class Broken:
    """A group that notes what is done to it."""

    calls: list[tuple[str, str, list[str]]] = field(default_factory=list)

    def begin_fault(self, fault: Fault, processes: Sequence[Process]) -> None:
        self.calls.append(("begin", fault.text, [process.file_name for process in processes]))

    def end_fault(self, fault: Fault, processes: Sequence[Process]) -> None:
        self.calls.append(("end", fault.text, [process.file_name for process in processes]))


def begun(schedule: FaultSchedule, now: float) -> None:
    event = make_event("phase", role="worker", rank=0, phase="train", state="begin", epoch=1)
    schedule.see(event, now)


def test_a_fault_begins_and_ends_by_the_clock_of_training() -> None:
    schedule, group = FaultSchedule(plan_with("partition node2 2s..4s")), Broken()
    assert schedule.advance(group, 100.0) == []  # type: ignore[arg-type]
    begun(schedule, 103.0)
    begun(schedule, 104.0)  # the next epoch does not matter
    assert schedule.advance(group, 104.9) == []  # type: ignore[arg-type]
    (first,) = schedule.advance(group, 105.1)  # type: ignore[arg-type]
    assert schedule.advance(group, 106.9) == []  # type: ignore[arg-type]
    (last,) = schedule.advance(group, 107.0)  # type: ignore[arg-type]
    assert [call[0] for call in group.calls] == ["begin", "end"]
    assert group.calls[0][2] == ["worker-1"]
    assert (first.state, last.state, first.host) == ("begin", "end", "node2")  # type: ignore[union-attr]
    assert schedule.missed() == []


def test_a_process_that_a_fault_killed_is_said_to_be() -> None:
    plan = plan_with("kill worker1 at 0s")
    schedule, killed = FaultSchedule(plan), Exit(None, "SIGKILL", "was ended by SIGKILL: it was killed from outside")
    assert schedule.explain(plan.processes[1], killed) == killed
    begun(schedule, 1.0)
    schedule.advance(Broken(), 1.0)  # type: ignore[arg-type]
    assert schedule.explain(plan.processes[1], killed).cause == "was ended by SIGKILL: --fault 'kill worker1 at 0s'"
    assert schedule.explain(plan.processes[0], killed) == killed


def test_a_fault_that_came_too_late_is_a_warning() -> None:
    schedule = FaultSchedule(plan_with("kill worker1 at 15s"))
    begun(schedule, 1.0)
    (warning,) = schedule.missed()
    assert warning.message == "--fault 'kill worker1 at 15s' did not happen: training was over before"  # type: ignore[union-attr]


def test_the_result_records_faults_in_seconds_of_the_run() -> None:
    summary = RunState(1000.0)
    fields = {"fault": "slow node2 4x 1s..2s", "action": "slow", "target": "node2", "host": "node2", "factor": 4.0}
    for state, moment in (("begin", 1011.0), ("end", 1012.5)):
        summary.add(make_event("fault", state=state, **fields).model_copy(update={"received": moment}))
    (fault,) = summary.fault_records()
    assert fault.as_json() == {**fields, "start": 11.0, "end": 12.5}

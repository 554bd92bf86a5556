"""The supervisor names who died, stalled or never connected, whatever processes print; no process is started here."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import (
    CONNECT,
    FINISH,
    Clock,
    Script,
    ScriptedGroup,
    ScriptedLauncher,
    beats,
    heartbeat,
    hello,
    line,
    phase,
)

from synthetic_races import result as made_up
from synthetic_races import typed
from velodrome.clusters.launcher import AllocationEnded, Diagnosis
from velodrome.clusters.plan import make_plan
from velodrome.errors import FolderGone, VelodromeError
from velodrome.events.models import Event, LostEvent, WarningEvent
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.run.attempt import JobFailed
from velodrome.run.execute import execute
from velodrome.run.processes import Failure
from velodrome.run.state import RunState
from velodrome.run.store import OpenRun, Store
from velodrome.run.supervisor import LEAVE_SECONDS, Supervisor, event_key

pytestmark = pytest.mark.unit

JOB = {"engine": "torch", "strategy": "ddp", "workers": 2}
PARAMETER_SERVER = {"engine": "tensorflow", "strategy": "parameter-server", "workers": 2, "servers": 1}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OpenRun]:
    opened = Store(tmp_path).create("a", Job())
    yield opened
    opened.close()


class Supervised:
    """What came of supervising processes that follow these scripts."""

    def __init__(self, run: OpenRun, scripts: list[Script], job: dict[str, Any] | None = None, **options: Any) -> None:
        self.launcher = ScriptedLauncher([scripts], options=options)
        resolved = resolve(Job(**{**JOB, "start_timeout": 20, "stall_timeout": 20, **(job or {})}))
        self.plan = make_plan("a", resolved, self.launcher.hosts)
        self.events: list[Event] = []
        clock: Clock = self.launcher.clock
        run.now = clock  # type: ignore[method-assign]
        self.failure: Failure | None = Supervisor(
            run, self.plan, self.launcher, lambda state, event: self.events.append(event)
        ).watch()
        self.seconds = clock.now - 1000.0

    @property
    def group(self) -> ScriptedGroup:
        return self.launcher.groups[0]

    @property
    def message(self) -> str:
        assert self.failure is not None, "it did not fail"
        return self.failure.message

    @property
    def culprit(self) -> tuple[str | None, int | None, str | None]:
        assert self.failure is not None, "it did not fail"
        return self.failure.role, self.failure.rank, self.failure.host


def test_a_good_run_ends_with_all_processes_gone(run: OpenRun) -> None:
    done = Supervised(run, [[*CONNECT, *FINISH, 0], [*CONNECT, FINISH[0], 0]])
    assert done.failure is None
    assert done.group.calls == ["collect", "stop"]
    assert done.events[-1].kind == "result"
    assert list(run.events()) == done.events


@pytest.mark.parametrize(("code", "words"), [
    (-9, "was ended by SIGKILL: it was killed from outside, or the system ran out of memory"),
    (3, "exited with code 3 before it was finished"),
    (0, "exited with code 0 before it was finished"),
])
def test_a_process_that_dies_is_named_with_how_it_ended(run: OpenRun, code: int, words: str) -> None:
    done = Supervised(run, [[*CONNECT, *beats(9)], [*CONNECT, heartbeat(5), code]])
    assert done.culprit == ("worker", 1, "10.0.0.2")
    assert done.message == f"worker 1 on 10.0.0.2 {words}"
    assert done.failure is not None
    assert done.failure.cause == "exit"
    assert done.group.calls == ["collect", "stop"]


def test_a_lost_peer_is_not_the_cause_when_another_process_was_killed(run: OpenRun) -> None:
    lost = line("error", cause="peer", message="lost another worker")
    done = Supervised(run, [[*CONNECT, lost, 1], [*CONNECT, None, None, -9]])
    assert done.culprit == ("worker", 1, "10.0.0.2")
    assert "SIGKILL" in done.message


def test_a_lost_peer_is_the_cause_when_nothing_else_is_known(run: OpenRun) -> None:
    lost = line("error", cause="peer", message="lost another worker")
    done = Supervised(run, [[*CONNECT, lost, 1], [*CONNECT, *beats(9)]])
    assert done.message == "worker 0 on 10.0.0.1: lost another worker"


def test_a_peer_that_does_not_answer_is_the_cause_and_not_who_lost_it(run: OpenRun) -> None:
    lost = line("error", cause="peer", message="lost another worker")
    done = Supervised(run, [[*CONNECT, *beats(6), lost, 1], [*CONNECT, heartbeat(5)]], {"stall_timeout": 60})
    assert done.culprit == ("worker", 1, "10.0.0.2")
    assert "worker 1 on 10.0.0.2 did not answer: " in done.message
    assert "and its heartbeat stopped" in done.message


def test_a_process_whose_heartbeat_stops_has_stalled(run: OpenRun) -> None:
    done = Supervised(run, [[*CONNECT, *beats(30, lambda tick: tick)], [*CONNECT, heartbeat(7)]], {"stall_timeout": 4})
    assert done.culprit == ("worker", 1, "10.0.0.2")
    assert "made no progress for 4 s (--stall-timeout): its last event was 'phase train begin'" in done.message
    assert done.seconds < 6


@pytest.mark.parametrize(("promised", "found_after"), [(1.0, 4), (0.0, 20), (None, 20)])
def test_a_process_that_is_stopped_before_its_first_heartbeat_is_found_once_it_was_due(
    run: OpenRun, promised: float | None, found_after: int
) -> None:
    """One that has promised none, as in older versions, is waited for until the start takes too long."""
    others = [CONNECT[0], *beats(30)]
    done = Supervised(run, [others, [hello(promised), phase("import")]], {"stall_timeout": 4, "start_timeout": 20})
    assert done.culprit == ("worker", 1, "10.0.0.2")
    option = "--stall-timeout" if found_after == 4 else "--start-timeout"
    assert f"{found_after} s ({option}): its last event was 'phase import begin'" in done.message
    assert found_after < done.seconds < found_after + 1


def test_a_heartbeat_without_progress_is_a_stall_of_who_does_not_wait(run: OpenRun) -> None:
    scripts = [[*CONNECT, *beats(30, waiting=True)], [*CONNECT, *beats(30)]]
    done = Supervised(run, scripts, {"stall_timeout": 4})
    assert done.culprit == ("worker", 1, "10.0.0.2")
    assert (run.path / "logs" / "worker-1.stack.txt").read_text() == "a stack\n"
    assert not (run.path / "logs" / "worker-0.stack.txt").exists()


def test_the_age_of_the_last_event_is_counted_from_its_arrival(run: OpenRun) -> None:
    """The clocks of hosts differ: events of this test are from 1970."""
    done = Supervised(run, [[*CONNECT, *beats(30)], [*CONNECT, *beats(30)]], {"stall_timeout": 4})
    assert "4 s ago" in done.message


@pytest.mark.parametrize("diagnosis", [Diagnosis("x", "x", stopped=True), Diagnosis("x", "x", in_user_code=True)])
def test_a_diagnosis_distinguishes_processes_that_look_alike(run: OpenRun, diagnosis: Diagnosis) -> None:
    scripts = [[*CONNECT, *beats(30)], [*CONNECT, *beats(30)]]
    done = Supervised(run, scripts, {"stall_timeout": 4}, diagnoses={"worker-1": diagnosis})
    assert done.culprit == ("worker", 1, "10.0.0.2")
    assert done.failure is not None
    assert done.failure.stack == "x"


def test_a_process_that_never_connects_is_named(run: OpenRun) -> None:
    scripts = [[CONNECT[0], *beats(30)], [line("phase", phase="import", state="begin"), *beats(30)]]
    done = Supervised(run, scripts, {"start_timeout": 3})
    assert done.culprit == ("worker", 1, "10.0.0.2")
    assert "did not connect within 3 s (--start-timeout)" in done.message
    assert 3 < done.seconds < 4


def test_a_process_that_never_prints_anything_is_named(run: OpenRun) -> None:
    done = Supervised(run, [[CONNECT[0], *beats(30)], []], {"start_timeout": 3})
    assert done.culprit == ("worker", 1, "10.0.0.2")
    assert done.message.endswith(": it never reported anything")


@pytest.mark.parametrize("text", [
    RESULT_CUT := FINISH[1][:60],
    "@velodrome {not json}",
    '@velodrome {"kind": "result"}',
    '@velodrome {"kind": "no such kind"}',
    "\x00\ufffd garbage",
    "",
])
def test_what_is_no_whole_event_goes_to_the_log_and_nothing_else_happens(run: OpenRun, text: str) -> None:
    done = Supervised(run, [[*CONNECT, text, *FINISH, 0], [*CONNECT, None, *FINISH[:1], 0]])
    assert done.failure is None
    assert text in (run.path / "logs" / "worker-0.log").read_text()
    assert sum(event.kind == "result" for event in done.events) == 1


def test_half_a_line_before_death_is_no_result(run: OpenRun) -> None:
    done = Supervised(run, [[*CONNECT, RESULT_CUT, -9], [*CONNECT, *beats(9)]])
    assert done.culprit == ("worker", 0, "10.0.0.1")
    assert "SIGKILL" in done.message
    assert RESULT_CUT in (run.path / "logs" / "worker-0.log").read_text()


def test_all_processes_that_exit_0_without_a_result_have_failed(run: OpenRun) -> None:
    done = Supervised(run, [[*CONNECT, 0], [*CONNECT, 0]])
    assert done.culprit == ("worker", 0, "10.0.0.1")
    assert "exited with code 0 before it was finished" in done.message


def test_processes_that_linger_after_the_result_are_stopped_in_time(run: OpenRun) -> None:
    done = Supervised(run, [[*CONNECT, *FINISH, 0], [*CONNECT, *beats(60)]])
    assert done.failure is None
    assert LEAVE_SECONDS < done.seconds < LEAVE_SECONDS + 2
    assert done.group.calls == ["collect", "stop"]


def test_only_the_chief_is_waited_for_where_workers_do_not_leave_by_themselves(run: OpenRun) -> None:
    serving: Script = [*CONNECT[:2], *beats(60)]
    done = Supervised(run, [serving, serving, serving, [*CONNECT, *FINISH, 0]], PARAMETER_SERVER)
    assert done.failure is None
    assert done.seconds < 2


def test_with_keep_going_a_lost_worker_is_reported_and_the_run_continues(run: OpenRun) -> None:
    serving: Script = [*CONNECT[:2], *beats(60)]
    chief = [*CONNECT, *beats(1), *FINISH, 0]
    scripts: list[Script] = [serving, serving, [*CONNECT[:2], -9], chief]
    done = Supervised(run, scripts, {**PARAMETER_SERVER, "keep_going": True})
    assert done.failure is None
    (lost,) = [event for event in done.events if isinstance(event, LostEvent)]
    assert (lost.role, lost.rank) == ("worker", 1)
    assert lost.message.endswith("; the run continues with 1 worker")


def test_with_keep_going_the_last_worker_is_not_given_up(run: OpenRun) -> None:
    serving: Script = [*CONNECT[:2], *beats(60)]
    scripts: list[Script] = [serving, [*CONNECT[:2], -9], [*CONNECT[:2], None, -9], [*CONNECT, *beats(60)]]
    done = Supervised(run, scripts, {**PARAMETER_SERVER, "keep_going": True})
    assert done.culprit == ("worker", 1, "10.0.0.2")


def test_the_users_error_ends_the_run_with_their_traceback(run: OpenRun) -> None:
    raised = line("error", cause="user", message="ValueError: odd", traceback="line 3")
    done = Supervised(run, [[*CONNECT, *beats(9)], [*CONNECT, raised, 1]])
    assert done.message == "worker 1 on 10.0.0.2: ValueError: odd"
    assert done.failure is not None
    assert (done.failure.cause, done.failure.traceback) == ("user", "line 3")


def test_events_carry_the_time_at_which_the_controller_received_them(run: OpenRun) -> None:
    done = Supervised(run, [[*CONNECT, *FINISH, 0], [*CONNECT, FINISH[0], 0]])
    last = done.launcher.clock.now
    assert all(event.time == 1.0 and 1000.0 < (event.received or 0) <= last for event in done.events)


def test_what_cannot_be_collected_fails_a_run_that_was_good(run: OpenRun) -> None:
    gone = VelodromeError("10.0.0.2 does not answer")
    done = Supervised(run, [[*CONNECT, *FINISH, 0], [*CONNECT, FINISH[0], 0]], uncollectable=gone)
    assert done.message == "model, checkpoints or logs could not be collected: 10.0.0.2 does not answer"
    assert done.group.calls == ["collect", "stop"]


def test_a_group_is_stopped_whatever_happens(run: OpenRun) -> None:
    launcher = ScriptedLauncher([[[CONNECT[0]], []]])

    def interrupt(state: RunState, event: Event) -> None:
        raise KeyboardInterrupt

    plan = make_plan("a", resolve(Job(**JOB)), launcher.hosts)
    with pytest.raises(KeyboardInterrupt):
        Supervisor(run, plan, launcher, interrupt).watch()
    assert launcher.groups[0].calls == ["collect", "stop"]


@pytest.mark.parametrize(("presses", "expected"), [(1, [False, False]), (2, [False, True])])
def test_a_second_ctrl_c_ends_collecting_at_once(run: OpenRun, presses: int, expected: list[bool]) -> None:
    found: list[bool] = []

    def collecting(given_up: Callable[[], bool]) -> None:
        found.append(given_up())
        if presses > 1:
            signal.raise_signal(signal.SIGINT)
        found.append(given_up())

    launcher = ScriptedLauncher([[[CONNECT[0]], []]], options={"collecting": collecting})

    def interrupt(state: RunState, event: Event) -> None:
        raise KeyboardInterrupt

    plan = make_plan("a", resolve(Job(**JOB)), launcher.hosts)
    with pytest.raises(KeyboardInterrupt):
        Supervisor(run, plan, launcher, interrupt).watch()
    assert found == expected
    assert launcher.groups[0].calls == ["collect", "stop"]


TAKEN = line("error", cause="port", message="port 5001 is taken")


def test_a_port_that_was_taken_is_replaced_by_allocating_again(tmp_path: Path) -> None:
    good: list[Script] = [[*CONNECT, *FINISH, 0], [*CONNECT, FINISH[0], 0]]
    launcher = ScriptedLauncher([[[TAKEN, 1], [None, 1]], good])
    events: list[Event] = []
    result = execute(Job(**JOB), store=Store(tmp_path), name="a", launcher=launcher,
                     listener=lambda state, event: events.append(event))
    assert (result.status, result.launcher) == ("finished", "scripted")
    first, second = ({member.port for member in plan.members} for plan in launcher.plans)
    assert not first & second
    warnings = [event.message for event in events if isinstance(event, WarningEvent)]
    assert warnings == ["worker 0 on 10.0.0.1: port 5001 is taken; trying again with other ports"]


def test_ports_that_are_always_taken_end_the_run(tmp_path: Path) -> None:
    launcher = ScriptedLauncher([[[TAKEN, 1], [None, 1]]] * 5)
    with pytest.raises(JobFailed, match="port 5001 is taken") as raised:
        execute(Job(**JOB), store=Store(tmp_path), name="a", launcher=launcher)
    assert raised.value.failure.cause == "port"
    assert len(launcher.groups) == 5


def test_hosts_that_cannot_be_allocated_leave_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = ScriptedLauncher([])

    def refuse(job: Job, *more: object) -> None:
        raise VelodromeError("no two nodes are free")

    monkeypatch.setattr(launcher, "allocate", refuse)
    with pytest.raises(JobFailed, match="no two nodes are free"):
        execute(Job(**JOB), store=Store(tmp_path), name="a", launcher=launcher)
    result = Store(tmp_path).get("a").result()
    assert result is not None
    assert (result.status, result.error and result.error.cause) == ("failed", "start")


def _replace(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.mkdir()
    (path / "controller.lock").write_text("of another run")


@pytest.mark.parametrize("harm", [
    pytest.param(shutil.rmtree, id="removed"),
    pytest.param(lambda path: path.rename(path.with_name("moved")), id="renamed"),
    pytest.param(_replace, id="replaced"),
    pytest.param(lambda path: path.parent.rename(path.parent.with_name("elsewhere")), id="runs-renamed"),
])
@pytest.mark.parametrize("at", ["train", "result"])
def test_a_run_whose_folder_vanishes_ends_in_one_sentence(
    tmp_path: Path, harm: Callable[[Path], object], at: str
) -> None:
    runs = tmp_path / "runs"
    long: list[Script] = [[*CONNECT, *beats(900)], [*CONNECT, *beats(900)]]
    ending: list[Script] = [[*CONNECT, *FINISH, 0], [*CONNECT, FINISH[0], 0]]
    launcher = ScriptedLauncher([long if at == "train" else ending])
    done: list[Path] = []

    def listen(state: RunState, event: Event) -> None:
        if not done and at in (event.kind, getattr(event, "phase", "")):
            done.append(runs / "a")
            harm(runs / "a")

    with pytest.raises(FolderGone, match=r"run 'a' ended because its folder .* was removed") as end:
        execute(Job(**JOB, stall_timeout=5000), store=Store(runs), name="a", launcher=launcher, listener=listen)
    assert end.value.exit_code == 1
    assert "\n" not in str(end.value)
    assert launcher.groups[0].calls == ["stop"], "nothing is collected into a folder that is gone"
    assert not list(tmp_path.rglob("result.json"))
    assert (runs / "a").exists() == (harm is _replace)
    locks = [path.read_text() for path in tmp_path.rglob("controller.lock")]
    assert locks == (["of another run"] if harm is _replace else [])


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.rename(path.with_name("moved")),
                                  lambda path: path.with_name("other").replace(path)])
def test_a_run_whose_events_vanish_ends_in_one_sentence(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    long: list[Script] = [[*CONNECT, *beats(900)], [*CONNECT, *beats(900)]]
    launcher, done = ScriptedLauncher([long]), list[Event]()

    def listen(state: RunState, event: Event) -> None:
        if not done and getattr(event, "phase", "") == "train":
            done.append(event)
            (tmp_path / "a" / "other").write_text("", encoding="utf-8")
            harm(tmp_path / "a" / "events.jsonl")

    with pytest.raises(FolderGone, match=r"run 'a' ended because its file .*events.jsonl' was removed") as end:
        execute(Job(**JOB, stall_timeout=5000), store=Store(tmp_path), name="a", launcher=launcher, listener=listen)
    assert end.value.exit_code == 1
    assert not list(tmp_path.rglob("result.json"))


def test_a_run_is_no_longer_running_after_its_folder_was_renamed(tmp_path: Path) -> None:
    run = Store(tmp_path).create("a", Job())
    run.path.rename(tmp_path / "b")
    with pytest.raises(FolderGone):
        run.finish(typed(made_up()))
    run.close()
    moved = Store(tmp_path).get("b")
    assert moved.status() == "interrupted"
    assert not (moved.path / ".reserve").exists()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_is_set_during_a_run_changes_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    real, shift = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    scripts: list[Script] = [[hello(1.0), *CONNECT, *FINISH, 0], [hello(1.0), *CONNECT, FINISH[0], 0]]

    def listen(state: RunState, event: Event) -> None:
        nonlocal shift
        if event.kind == "hello":
            shift = jump

    before = real()
    result = execute(Job(**JOB), store=Store(tmp_path), name="a", launcher=ScriptedLauncher([scripts]), listener=listen)
    took = real() - before + 1
    assert 0 <= result.seconds.startup <= result.seconds.total <= took
    assert result.seconds.total > 0
    assert before - 1 < result.started < result.ended < before + took
    assert [host.hostname for host in result.hosts] == ["a"], "no event is taken for one of an earlier attempt"


def test_events_that_an_earlier_controller_recorded_are_not_recorded_again(run: OpenRun) -> None:
    scripts: list[Script] = [[*CONNECT, *FINISH, 0], [*CONNECT, FINISH[0], 0]]
    first = Supervised(run, scripts)
    launcher = ScriptedLauncher([scripts])
    again: list[Event] = []
    known = frozenset(map(event_key, first.events[:4]))
    run.now = launcher.clock  # type: ignore[method-assign]
    state = RunState.of(first.plan, launcher.clock.now, first.events[:4])
    failure = Supervisor(
        run, first.plan, launcher, lambda state, event: again.append(event), state, attached=True, known=known
    ).watch()
    assert failure is None
    assert len(known) > 1
    assert not known & {event_key(event) for event in again}
    assert again[-1].kind == "result"


def test_hosts_that_were_taken_away_interrupt_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken_away(group: ScriptedGroup, seconds: float, deliver: object) -> None:
        raise AllocationEnded("Slurm job 7 on n1 ended: its time limit was reached (TIMEOUT)")

    monkeypatch.setattr(ScriptedGroup, "wait", taken_away)
    launcher = ScriptedLauncher([[[], []]])
    with pytest.raises(JobFailed, match="its time limit was reached") as ended:
        execute(Job(**JOB), store=Store(tmp_path), launcher=launcher, name="a")
    assert ended.value.result.status == "interrupted"
    assert ended.value.result.error is not None
    assert ended.value.result.error.cause == "interrupt"
    assert launcher.groups[0].calls == ["collect", "stop"]

"""A result is counted from events, whoever was missing among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from velodrome.clusters.plan import Plan, make_plan
from velodrome.events import to_event
from velodrome.events.fields import SCHEMA_VERSION
from velodrome.events.models import Event, Pace
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.job.result import Ended
from velodrome.run.outcome import make_result
from velodrome.run.processes import Failure
from velodrome.run.samples import throughput
from velodrome.run.state import RunState

pytestmark = pytest.mark.unit


def plan(**fields: Any) -> Plan:
    return make_plan("a", resolve(Job(strategy="ddp", workers=2, **fields)), port=lambda host: 0)


def reported(kind: str, rank: int = 0, time: float = 0.0, **fields: Any) -> Event:
    return to_event({"time": time, "role": "worker", "rank": rank, "kind": kind, **fields})


def outcome(
    plan: Plan, path: str, status: Ended, events: Iterable[Event], *, started: float, ended: float, **more: Any
) -> dict[str, Any]:
    """The result of these events as it is stored."""
    return make_result(plan, RunState.of(plan, started, events), path, status, ended=ended, **more).as_json()


def counts(correct: int, total: int, loss: float | None) -> dict[str, Any]:
    return {"correct": correct, "total": total, "loss_sum": loss}


def epoch(number: int, seconds: float = 2.0) -> Event:
    return reported("epoch", epoch=number, seconds=seconds, evaluate_seconds=0.5, steps=8 * number,
                    train=counts(6, 8, 4.0), validation=counts(1, 2, None))


def resources(rank: int, cpu: float, memory: int) -> Event:
    return reported("resources", rank, cpu_percent=cpu, memory_bytes=memory, network={"in": 1, "out": 2, "loopback": 3})


def test_a_finished_run_is_summed_up() -> None:
    pace = {"seconds": 4.0, "examples": 1000, "warmup": {"steps": 5, "examples": 200, "seconds": 2.0}}
    events = [
        reported("phase", phase="train", state="begin", time=13.0, epoch=1),
        resources(0, 50.0, 100), resources(0, 100.0, 300), resources(1, 10.0, 50),
        reported("phase", 1, phase="import", state="end", seconds=1.25), epoch(1), epoch(2, 3.0),
        reported("staleness", mean=1.0, max=4), reported("staleness", mean=3.0, max=2),
        reported("result", test=counts(9, 10, 5.0), history=[], parameters=77, steps=20,
                 reached_target=False, test_seconds=0.25, pace=pace, pixels="byte"),
    ]
    result = outcome(plan(), "/runs/a", "finished", events, started=10.0, ended=20.0)
    assert result["pixels"] == "byte"
    assert result["test"] == {"accuracy": 0.9, "loss": 0.5, "correct": 9, "total": 10}
    assert result["seconds"] == {"startup": 3.0, "train": 5.0, "evaluate": 1.25, "total": 10.0}
    assert result["throughput"] == {"examples_per_second": 400.0, "batches_per_second": 3.125, "warmup_steps": 5}
    assert [entry["epoch"] for entry in result["history"]] == [1, 2]
    assert result["history"][0]["validation_loss"] is None, "a loss that is not finite stays out of JSON"
    assert result["nodes"][0]["cpu_percent"] == {"mean": 75.0, "min": 50.0, "max": 100.0}
    assert result["nodes"][0]["network_bytes"] == {"in": 2, "out": 4, "loopback": 6}
    assert result["nodes"][1]["phases"] == {"import": 1.25}
    assert result["staleness"] == {"mean": 2.0, "max": 4}
    assert "error" not in result


def test_a_result_tells_which_test_examples_were_right() -> None:
    pace = {"seconds": 4.0, "examples": 1000, "warmup": {"steps": 5, "examples": 200, "seconds": 2.0}}
    done = reported("result", test=counts(9, 10, 5.0), history=[], parameters=77, steps=20, pace=pace,
                    test_answers="eJz7bwYAAe4A7w==", test_fingerprint="0123456789abcdef")
    result = outcome(plan(), "/runs/a", "finished", [done], started=10.0, ended=20.0)
    assert (result["test"]["answers"], result["test"]["fingerprint"]) == ("eJz7bwYAAe4A7w==", "0123456789abcdef")


def test_a_run_that_never_began_has_a_result_too() -> None:
    failure = Failure("worker 1 on h was ended by SIGKILL", "worker", 1, "h", cause="exit")
    result = outcome(plan(), "/runs/a", "failed", [], started=10.0, ended=12.0, failure=failure)
    assert (result["status"], result["test"], result["history"]) == ("failed", None, [])
    assert result["nodes"][1]["cpu_percent"] == {"mean": None, "min": None, "max": None}
    assert result["error"] == {
        "message": "worker 1 on h was ended by SIGKILL", "role": "worker", "rank": 1, "host": "h", "cause": "exit"
    }


def test_an_epoch_that_was_trained_again_after_a_resume_counts_once() -> None:
    result = outcome(plan(), "/a", "finished", [epoch(1), epoch(2), epoch(2, 4.0)], started=0.0, ended=1.0)
    assert [entry["seconds"] for entry in result["history"]] == [2.0, 4.0]


def test_the_warm_up_is_left_out_unless_nothing_else_is_there() -> None:
    pace = Pace.model_validate(
        {"seconds": 2.0, "examples": 100, "warmup": {"steps": 5, "examples": 100, "seconds": 2.0}}
    )
    assert throughput(pace, 10).as_json() == {"examples_per_second": 50.0, "batches_per_second": 5.0, "warmup_steps": 0}
    assert throughput(None, 10).examples_per_second is None
    nothing = Pace.model_validate(
        {"seconds": 0.0, "examples": 0, "warmup": {"steps": 0, "examples": 0, "seconds": 0.0}}
    )
    assert throughput(nothing, 10).examples_per_second is None


def hello(host: str, rank: int, **fields: Any) -> Event:
    about = {"clock": 0.0, "interpreter": "/opt/python", "python": "3.11.7", "versions": {"torch": "2.13.0"},
             "cores": 2, "memory_bytes": 2**34, "gpus": [], "schema": SCHEMA_VERSION}
    return reported("hello", rank, host=host, **{**about, **fields})


def test_every_host_is_described_once() -> None:
    events = [hello("a", 0), hello("b", 1, gpus=["A100"], python="3.12.1", versions={"torch": "2.12"}), hello("a", 1)]
    result = outcome(plan(), "/a", "finished", events, started=0.0, ended=1.0)
    assert [host["hostname"] for host in result["hosts"]] == ["a", "b"]
    assert result["hosts"][1]["gpus"] == ["A100"]
    assert (result["versions"]["python"], result["versions"]["torch"]) == ("3.11.7", "2.13.0"), "of rank 0"


def heartbeat(rank: int, time: float, busy: float, own: float, **fields: Any) -> Event:
    cpu_time = {"seconds": 1.0, "busy": busy, "own": own, "controller": 0.0}
    return reported("resources", rank, time, cpu_percent=1.0, memory_bytes=1,
                    network={"in": 0, "out": 0, "loopback": 0}, cpu_time=cpu_time, **fields)


def test_every_host_reports_what_other_programs_used_of_it() -> None:
    events = [hello("a", 0), hello("b", 1), hello("quiet", 2), heartbeat(0, 1.0, 1.9, 1.0), heartbeat(1, 1.0, 2.0, 2.0)]
    result = outcome(plan(), "/a", "finished", events, started=0.0, ended=1.0)
    assert result["hosts"][0]["cpu"] == {"busy": 1.9, "own": 1.0, "foreign": 0.9, "seconds": 1.0}
    assert result["hosts"][1]["cpu"]["foreign"] == 0.0
    assert "cpu" not in result["hosts"][2], "nothing is claimed of a host that reported nothing"


def test_what_other_programs_used_before_a_resume_does_not_count() -> None:
    events = [
        hello("a", 0, time=1.0, received=1.0), heartbeat(0, 2.0, 2.0, 0.0, received=2.0),
        hello("a", 0, time=11.0, received=11.0), heartbeat(0, 12.0, 1.0, 1.0, received=12.0),
    ]
    result = outcome(plan(), "/a", "finished", events, started=10.0, ended=20.0)
    assert result["hosts"][0]["cpu"] == {"busy": 1.0, "own": 1.0, "foreign": 0.0, "seconds": 1.0}


def test_hosts_of_an_attempt_before_a_resume_are_left_out() -> None:
    events = [hello("gone", 0, time=1.0, received=1.0), hello("here", 0, time=1.0, received=11.0)]
    result = outcome(plan(), "/a", "finished", events, started=10.0, ended=20.0)
    assert [host["hostname"] for host in result["hosts"]] == ["here"]


def test_the_start_is_measured_by_the_controllers_clock_also_where_a_host_has_another() -> None:
    begin = reported("phase", phase="train", state="begin", epoch=1, time=5000.0, received=13.0)
    result = outcome(plan(), "/a", "finished", [begin], started=10.0, ended=20.0)
    assert result["seconds"]["startup"] == 3.0
    behind = reported("phase", phase="train", state="begin", epoch=1, time=1.0, received=14.0)
    assert outcome(plan(), "/a", "finished", [behind], started=10.0, ended=20.0)["seconds"]["startup"] == 4.0


def test_a_clock_that_is_set_back_makes_no_time_negative() -> None:
    result = outcome(plan(), "/a", "finished", [epoch(1)], started=10.0, ended=8.0)
    assert (result["seconds"]["startup"], result["seconds"]["total"]) == (0.0, 0.0)


def test_a_result_records_its_schema_and_what_it_was_made_with() -> None:
    pace = {"seconds": 0.0, "examples": 0, "warmup": {"steps": 0, "examples": 0, "seconds": 0.0}}
    implementation = {"kind": "velodrome", "parts": ["optimizer"], "path": "shared-memory"}
    final = reported("result", test=counts(1, 2, 1.0), history=[], parameters=1, steps=1, pace=pace,
                     implementation=implementation)
    result = outcome(plan(), "/a", "finished", [final], started=0.0, ended=1.0, launcher="ssh")
    assert (result["schema"], result["launcher"], result["task"]) == (SCHEMA_VERSION, "ssh", "classification")
    assert result["implementation"] == implementation


def script_plan() -> Plan:
    return make_plan("a", resolve(Job(script="train.py", workers=2), "torch"), port=lambda host: 0)


def script_epoch(number: int, seconds: float) -> Event:
    figures = {"total": 0, "loss_sum": None, "reported": {"loss": 1.0}}
    return reported("epoch", epoch=number, seconds=seconds, evaluate_seconds=0.0, steps=number, train=figures,
                    validation={"total": 0, "loss_sum": None, "reported": {}})


def phase(name: str, rank: int, time: float, received: float) -> Event:
    return reported("phase", rank, time=time, phase=name, state="begin", received=received,
                    **({"epoch": 1} if name == "train" else {}))


@pytest.mark.parametrize("first", [0, 1])
def test_start_up_and_training_of_a_script_are_those_of_rank_0_whoever_reports_first(first: int) -> None:
    """Rank 0 hears of its first epoch when it is over, after 16 of 20 seconds; rank 1 reports steps from the 5th on."""
    begins = [phase("script", 0, 12.2, 12.3), phase("script", 1, 12.1, 12.2)]
    events = [
        *(begins if first == 0 else begins[::-1]), phase("train", 1, 15.0, 15.1), phase("train", 0, 14.2, 26.0),
        script_epoch(1, 11.7), script_epoch(2, 3.5),
    ]
    seconds = outcome(script_plan(), "/runs/a", "finished", events, started=10.0, ended=29.7)["seconds"]
    assert seconds == {"startup": 4.3, "train": 15.2, "evaluate": 0.0, "total": 19.7}


def test_the_start_up_of_a_script_that_reports_nothing_ends_with_the_imports_of_rank_0() -> None:
    imports = [reported("phase", rank, time=15.2 + rank, received=15.3 + rank, phase="import", state="end", seconds=3.0)
               for rank in (1, 0)]
    events = [phase("script", 0, 12.2, 12.3), phase("script", 1, 12.1, 12.2), *imports]
    seconds = outcome(script_plan(), "/runs/a", "finished", events, started=10.0, ended=29.7)["seconds"]
    assert seconds == {"startup": 5.3, "train": None, "evaluate": None, "total": 19.7}


def test_the_parts_of_a_scripts_time_never_exceed_the_whole() -> None:
    late = [phase("script", 0, 10.0, 13.0), phase("train", 0, 10.5, 13.5), script_epoch(1, 9.0)]
    seconds = outcome(script_plan(), "/runs/a", "finished", late, started=10.0, ended=20.0)["seconds"]
    assert seconds == {"startup": 1.0, "train": 9.0, "evaluate": 0.0, "total": 10.0}


def test_epochs_of_an_earlier_attempt_are_not_those_of_a_script_that_began_anew() -> None:
    earlier = [script_epoch(1, 5.0), script_epoch(2, 5.0)]
    events = [*earlier, phase("script", 0, 12.0, 12.0), phase("train", 0, 13.0, 13.0), script_epoch(1, 4.0)]
    result = outcome(script_plan(), "/runs/a", "failed", events, started=10.0, ended=20.0,
                         failure=Failure("ended"))
    assert (result["seconds"]["train"], result["epochs"]) == (4.0, 1)

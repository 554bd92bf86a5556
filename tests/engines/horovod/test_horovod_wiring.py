"""How Horovod's processes are started and find one another, without Horovod: the plan, the rendezvous, the options."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path

import pytest

from velodrome.catalog import registry
from velodrome.catalog.world import Member, numbered, worlds
from velodrome.clusters import environments, preflight
from velodrome.clusters.plan import make_plan
from velodrome.errors import BadRequest, PortTaken, Unavailable
from velodrome.job.job import Job
from velodrome.job.race import combinations, parse_race
from velodrome.job.resolve import resolve
from velodrome.transport.horovod_rendezvous import RendezvousServer

#: What the launcher of Horovod 0.28.1 sets for each of its processes, by its `-H` option: recorded with its functions
#: `get_host_assignments` and `create_slot_env_vars`.
RECORDED = json.loads((Path(__file__).parent / "horovodrun.json").read_text())


@pytest.mark.parametrize("hosts", [*RECORDED])
def test_processes_get_the_variables_that_horovods_own_launcher_sets(hosts: str) -> None:
    recorded = RECORDED[hosts]
    members = [Member("worker", rank, one["HOROVOD_HOSTNAME"], 29400 + rank) for rank, one in enumerate(recorded)]
    engine = registry.engine("horovod")
    allreduce = next(strategy for strategy in engine.strategies if strategy.name == "allreduce")
    for world, theirs in zip(worlds(numbered(members)), recorded, strict=True):
        ours = engine.environment(allreduce, world)
        assert {name: ours[name] for name in theirs} == theirs
        # The rendezvous is at worker 0's address of the plan.
        assert ours["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == members[0].host
        assert ours["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "29400"


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_plan_has_one_process_per_worker_whatever_their_number(framework: str) -> None:
    for workers in (1, 2, 5):
        job = resolve(Job(engine="horovod", strategy="allreduce", framework=framework, workers=workers))
        plan = make_plan("a", job, ["a", "b"])
        assert [process.environment["HOROVOD_RANK"] for process in plan.processes] == [*map(str, range(workers))]
        assert {process.environment["HOROVOD_SIZE"] for process in plan.processes} == {str(workers)}


def _asked(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body)
    answer = connection.getresponse()
    response = answer.status, answer.read()
    connection.close()
    return response


def test_the_rendezvous_keeps_what_processes_publish_at_one_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VELODROME_SECRET", "of tests")
    server = RendezvousServer("127.0.0.1", 0)
    port = server.server_port
    try:
        ours = f"/{server.key}:{port}"
        assert _asked(port, "GET", f"{ours}/global/0") == (404, b"")
        assert _asked(port, "PUT", f"{ours}/global/0", b"address \x00 of 0") == (200, b"")
        assert _asked(port, "GET", f"{ours}/global/0") == (200, b"address \x00 of 0")
        assert _asked(port, "GET", f"{ours}/local_a/0") == (404, b"")
        assert _asked(port, "DELETE", f"{ours}/global/0") == (200, b"")
        # Without the job's key nothing is told, and nothing is kept.
        assert _asked(port, "GET", "/global/0") == (403, b"")
        assert _asked(port, "PUT", f"/other:{port}/global/0", b"address of another") == (403, b"")
        assert _asked(port, "GET", f"{ours}/global/0") == (200, b"address \x00 of 0")
        with socket.socket() as elsewhere:
            elsewhere.settimeout(10)
            assert elsewhere.connect_ex(("127.0.0.2", port)) != 0
        with pytest.raises(PortTaken):
            RendezvousServer("127.0.0.1", port)
    finally:
        server.stop()
    with socket.socket() as late:
        late.settimeout(10)
        assert late.connect_ex(("127.0.0.1", port)) != 0


def test_the_default_framework_is_filled_in() -> None:
    job = resolve(Job(engine="horovod", strategy="allreduce", workers=2))
    assert job.framework == "torch"
    assert registry.engine_of(job).worker == "velodrome.engines.horovod.torch_worker"
    other = resolve(Job(engine="horovod", strategy="single", framework="tensorflow"))
    assert registry.engine_of(other).worker == "velodrome.engines.horovod.tensorflow_worker"
    assert resolve(Job(engine="torch")).framework is None


@pytest.mark.parametrize(("fields", "words"), [
    ({"engine": "torch", "framework": "torch"}, "engine torch has no such framework: it trains with one"),
    ({"engine": "torch", "strategy": "ddp", "workers": 2, "cycle_time_ms": 2.0},
     "--cycle-time-ms 2.0: strategy torch/ddp does not support this option (horovod/allreduce does); leave it out"),
    ({"engine": "horovod", "strategy": "single", "fusion_threshold_mb": 2.0},
     "horovod/single does not support this option"),
    ({"engine": "horovod", "framework": "tensorflow", "accumulate": 2},
     "--accumulate: engine horovod does not support this option"),
    ({"engine": "horovod", "framework": "tensorflow", "model": "lstm-small", "dataset": "ptb"},
     "--model 'lstm-small': engine horovod with --framework tensorflow has linear, dense-128, "),
])
def test_what_cannot_be_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        preflight.check_job(resolve(Job.model_validate(fields)))
    assert words in str(refused.value)


def test_an_environment_that_is_not_there_is_refused_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    for framework in ("torch", "tensorflow"):
        with pytest.raises(Unavailable) as refused:
            preflight.check_here(resolve(Job(engine="horovod", strategy="allreduce", framework=framework, workers=2)))
        assert f"velodrome engines install horovod --framework {framework}" in str(refused.value)


def test_a_race_has_a_baseline_for_each_framework_without_horovods_options() -> None:
    race = parse_race({
        "job": {"engine": "horovod", "strategy": "allreduce", "cycle_time_ms": 5.0},
        "vary": {"framework": ["torch", "tensorflow"], "workers": [1, 2]}, "baseline": True,
    })
    expanded = combinations(race)
    assert not expanded.wrong
    singles = [entry.job for entry in expanded.entries if entry.job.strategy == "single"]
    assert [(job.framework, job.cycle_time_ms) for job in singles] == [("torch", None), ("tensorflow", None)]

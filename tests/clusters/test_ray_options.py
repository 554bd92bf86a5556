"""What `--on ray` means, and what is reserved on its nodes; Ray itself is not started."""

from __future__ import annotations

import itertools
import re
from typing import Any, ClassVar

import pytest

from velodrome.clusters import target_of
from velodrome.clusters.definitions import validated
from velodrome.clusters.plan import make_plan
from velodrome.clusters.ray import RayOptions, reason_of
from velodrome.clusters.ray import launcher as module
from velodrome.clusters.ray.launcher import RayDriver, RayLauncher
from velodrome.clusters.remote.launcher import RemoteLauncher
from velodrome.clusters.remote.link import HostError
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

NODES = {
    "10.0.0.1": {"address": "10.0.0.1", "resources": {"CPU": 4.0, "GPU": 1.0}},
    "10.0.0.2": {"address": "10.0.0.2", "resources": {"CPU": 8.0, "fast_disk": 1.0}},
}


class Answers:
    """A driver whose answers are given; it records what it was asked."""

    def __init__(self, **answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, []

    def connect(self, address: str | None) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("connect", 0.0, address=address)["nodes"]
        return found

    def ask(self, do: str, seconds: float, **fields: Any) -> dict[str, Any]:
        self.asked.append((do, fields))
        return self.answers.get(do, {})


def _launcher(monkeypatch: pytest.MonkeyPatch, driver: Answers, **options: Any) -> RayLauncher:
    monkeypatch.setattr(module, "RayDriver", lambda address: driver)
    return RayLauncher(RayOptions(**options))


def test_an_address_may_follow_and_none_means_a_cluster_of_its_own() -> None:
    assert target_of("ray").options == RayOptions(address=None)
    assert target_of("ray:10.0.0.5:6379").options == RayOptions(address="10.0.0.5:6379")


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:99999", "head:port"])
def test_what_is_no_address_is_quoted(address: str) -> None:
    with pytest.raises(BadRequest, match=f"address '{address}': write it as HOST:PORT"):
        target_of(f"ray:{address}")


def test_wrong_options_are_refused_by_name() -> None:
    with pytest.raises(BadRequest, match=r"cluster 'farm': cpus -1"):
        validated(RayOptions, {"cpus": -1}, "cluster 'farm'")


def test_the_processes_of_a_node_share_its_cpus_unless_it_is_said_how_many(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _launcher(monkeypatch, Answers(connect={"nodes": NODES}))
    assert whole.hosts() == ["10.0.0.1", "10.0.0.2"]
    assert [whole._bundle(host) for host in whole.hosts()] == [{"CPU": 4.0}, {"CPU": 8.0}]
    assert [whole._bundle(host, 3) for host in whole.hosts()] == [{"CPU": 1.3333}, {"CPU": 2.6666}]
    part = _launcher(monkeypatch, Answers(connect={"nodes": NODES}), cpus=2, gpus=1)
    part.hosts()
    assert part._bundle("10.0.0.1") == part._bundle("10.0.0.1", 2) == {"CPU": 2.0, "GPU": 1.0}


def test_nodes_without_cpus_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    head = {"address": "10.0.0.9", "resources": {"memory": 1e9}}
    assert _launcher(monkeypatch, Answers(connect={"nodes": {"10.0.0.9": head, **NODES}})).hosts() == [*NODES]


def test_only_nodes_with_the_resources_are_used_and_none_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    some = _launcher(monkeypatch, Answers(connect={"nodes": NODES}), resources={"fast_disk": 1})
    assert some.hosts() == ["10.0.0.2"]
    none = _launcher(monkeypatch, Answers(connect={"nodes": NODES}), resources={"tape": 2})
    with pytest.raises(HostError, match=r"no node of the Ray cluster has 2 tape; it has 2 nodes"):
        none.hosts()


def test_what_cannot_be_reserved_is_listed_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ["node 10.0.0.1 has 1 of 4 CPU free, but 4 are needed"]
    driver = Answers(connect={"nodes": NODES}, reserve={"missing": missing})
    busy = _launcher(monkeypatch, driver, reserve_timeout=5)
    with pytest.raises(HostError, match=r"within 5 s: node 10\.0\.0\.1 has 1 of 4 CPU free, but 4 are needed"):
        busy.connect(["10.0.0.1"])
    places = {"10.0.0.1#0": {"node": "10.0.0.1", "resources": {"CPU": 4.0}}}
    assert driver.asked[-1] == ("reserve", {"places": places, "limit": 5.0})


class Spoken:
    """A link to an agent that is there."""

    facts: ClassVar[dict[str, object]] = {"cores": 4, "host": "here"}
    clock_offset = 0.0

    def __init__(self, place: str) -> None:
        self.place, self.host, self.lost = place, place.partition("#")[0], None

    def ask(self, do: str, **fields: Any) -> tuple[dict[str, Any], bytes]:
        return {"ports": fields["ports"][:4]}, b""

    def close(self) -> None:
        self.lost = "released"


def test_each_process_has_a_bundle_and_an_agent_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Answers(connect={"nodes": NODES})
    made = _launcher(monkeypatch, driver)
    monkeypatch.setattr(RayLauncher, "_open", lambda self, host, number, session: f"{host}#{number}")
    monkeypatch.setattr(RayLauncher, "open_link", lambda self, host, channel: Spoken(channel))
    monkeypatch.setattr(RemoteLauncher, "check", lambda self, job: self.connect(self.used_hosts(job)))
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    job = resolve(Job(engine="tensorflow", strategy="parameter-server", workers=2, servers=1))
    made.check(job)
    allocation = made.allocate(job)
    asked = [fields["places"] for do, fields in driver.asked if do == "reserve"]
    assert asked == [{
        "10.0.0.1#0": {"node": "10.0.0.1", "resources": {"CPU": 2.0}},
        "10.0.0.1#1": {"node": "10.0.0.1", "resources": {"CPU": 2.0}},
        "10.0.0.2#0": {"node": "10.0.0.2", "resources": {"CPU": 4.0}},
        "10.0.0.2#1": {"node": "10.0.0.2", "resources": {"CPU": 4.0}},
    }]
    plan = make_plan("run", job, allocation.hosts, placement=allocation.placement, addresses=allocation.addresses,
                     capacity=allocation.capacity)
    assert len({link.place for link in made.links_of(plan).values()}) == len(plan.processes) == 4
    fewer = resolve(Job(engine="torch", strategy="ddp", workers=2))
    made.check(fewer)
    assert len(driver.asked) == 2  # what is there serves for a check
    made.allocate(fewer)
    assert [do for do, _ in driver.asked[2:]] == ["release", "reserve"]
    made.allocate(fewer)
    assert len(driver.asked) == 4


class RayActorError(Exception):
    pass


class ActorUnavailableError(RayActorError):
    pass


class ActorDiedError(RayActorError):
    pass


class GetTimeoutError(TimeoutError):
    pass


class RuntimeEnvSetupError(Exception):
    pass


class OutOfMemoryError(Exception):
    pass


@pytest.mark.parametrize(("error", "sentence"), [
    (ActorUnavailableError("x"), "cannot be reached through Ray: the connection to its actor broke"),
    (ActorDiedError("x"), "lost its agent: Ray's actor there died"),
    (GetTimeoutError("x"), "did not start Ray's actor within 90 s: .*; raise start_timeout of the cluster"),
    (RuntimeEnvSetupError("Failed to set up.\nERROR: No matching distribution for velodrom\nexit 1"),
     "cannot prepare the runtime_env: ERROR: No matching distribution for velodrom$"),
    (OutOfMemoryError("x"), "the node ran out of memory"),
    (RayActorError("first\nlast"), r"cannot be reached through Ray: last \(RayActorError\)"),
    (ValueError(), "Ray gave no reason"),
])
def test_exceptions_of_ray_are_sentences(error: Exception, sentence: str) -> None:
    assert re.search(sentence, reason_of(error, 90.0))


@pytest.mark.parametrize(("options", "limit"), [
    ({}, 60.0), ({"runtime_env": {"pip": ["velodrome"]}}, 600.0),
    ({"runtime_env": {"pip": ["velodrome"]}, "start_timeout": 1200}, 1200.0),
])
def test_an_actor_has_time_to_install_its_packages(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], limit: float
) -> None:
    driver = Answers(connect={"nodes": NODES})
    asked: list[float] = []
    driver.open = lambda place, words, runtime_env, limit: asked.append(limit)  # type: ignore[attr-defined]
    _launcher(monkeypatch, driver, **options).open_channel("10.0.0.1", "session")
    assert asked == [limit]


def test_an_agent_that_does_not_start_is_reported_with_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = object.__new__(RayDriver)
    driver._numbers, driver._streams = itertools.count(), {}
    waited: list[float] = []

    def answer(do: str, seconds: float, **fields: Any) -> dict[str, Any]:
        waited.append(seconds)
        return {"failed": "'10.0.0.1' did not start"}

    monkeypatch.setattr(driver, "ask", answer)
    with pytest.raises(HostError, match=r"^'10\.0\.0\.1' did not start$"):
        driver.open("10.0.0.1#0", [], {}, 600.0)
    assert waited[0] > 600

"""What `--on ray` means, and what is reserved on its nodes; Ray itself is not started."""

from __future__ import annotations

from typing import Any

import pytest

from velodrome.cluster.options import validated
from velodrome.cluster.ray import launcher as module
from velodrome.cluster.ray.launcher import RayLauncher
from velodrome.cluster.ray.options import RayOptions
from velodrome.cluster.registry import target_of
from velodrome.cluster.remote.link import HostError
from velodrome.errors import BadRequest

NODES = {
    "10.0.0.1": {"address": "10.0.0.1", "resources": {"CPU": 4.0, "GPU": 1.0}},
    "10.0.0.2": {"address": "10.0.0.2", "resources": {"CPU": 8.0, "fast_disk": 1.0}},
}


class Answers:
    """A driver whose answers are given; it records what it was asked."""

    def __init__(self, **answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, []

    def ask(self, do: str, seconds: float, **fields: Any) -> dict[str, Any]:
        self.asked.append((do, fields))
        return self.answers.get(do, {})


def _launcher(monkeypatch: pytest.MonkeyPatch, driver: Answers, **options: Any) -> RayLauncher:
    monkeypatch.setattr(module, "RayDriver", lambda: driver)
    return RayLauncher(RayOptions(**options))


def test_an_address_may_follow_and_none_means_a_cluster_of_its_own() -> None:
    assert target_of("ray").options == RayOptions(address=None)
    assert target_of("ray:10.0.0.5:6379").options == RayOptions(address="10.0.0.5:6379")


def test_wrong_options_are_refused_by_name() -> None:
    with pytest.raises(BadRequest, match=r"cluster 'farm': cpus -1"):
        validated(RayOptions, {"cpus": -1}, "cluster 'farm'")


def test_whole_nodes_are_reserved_by_default_and_less_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _launcher(monkeypatch, Answers(connect={"nodes": NODES}))
    assert whole.hosts() == ["10.0.0.1", "10.0.0.2"]
    assert [whole._bundle(host) for host in whole.hosts()] == [{"CPU": 4.0}, {"CPU": 8.0}]
    part = _launcher(monkeypatch, Answers(connect={"nodes": NODES}), cpus=2, gpus=1)
    part.hosts()
    assert part._bundle("10.0.0.1") == {"CPU": 2.0, "GPU": 1.0}


def test_only_nodes_with_the_resources_are_used_and_none_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    some = _launcher(monkeypatch, Answers(connect={"nodes": NODES}), resources={"fast_disk": 1})
    assert some.hosts() == ["10.0.0.2"]
    none = _launcher(monkeypatch, Answers(connect={"nodes": NODES}), resources={"tape": 2})
    with pytest.raises(HostError, match=r"no node of the Ray cluster has 2 tape; it has 2 nodes"):
        none.hosts()


def test_what_cannot_be_reserved_is_listed_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ["node 10.0.0.1 has 1 of 4 CPU free, and 4 are asked for"]
    driver = Answers(connect={"nodes": NODES}, reserve={"missing": missing})
    busy = _launcher(monkeypatch, driver, reserve_timeout=5)
    with pytest.raises(HostError, match=r"within 5 s: node 10\.0\.0\.1 has 1 of 4 CPU free, and 4 are asked for"):
        busy.connect(["10.0.0.1"])
    assert driver.asked[-1] == ("reserve", {"bundles": {"10.0.0.1": {"CPU": 4.0}}, "limit": 5.0})

"""Whether this machine can emulate a cluster, found out by trying each part for a moment, before a run begins."""

from __future__ import annotations

from collections.abc import Callable

from velodrome.clusters.emulated.limits import Limits
from velodrome.clusters.emulated.links import delayed_by, queues
from velodrome.clusters.emulated.node import Node
from velodrome.clusters.emulated.request import EmulatedCluster
from velodrome.errors import VelodromeError

_PROBE = "probe"


def lacking(cluster: EmulatedCluster, *, slows: bool = False) -> list[str]:
    """What this machine lacks to emulate a cluster, a sentence each; `slows` if a fault slows nodes down."""
    found = _refusals(lambda: _try_limits(cluster, slows=slows))
    node = Node(_PROBE, "", None)
    try:
        if not (refused := _refusals(node.wait_until_ready)):
            refused = [
                *_refusals(lambda: _try_queues(cluster, node)),
                *_refusals(lambda: _try_delay(cluster, node)),
            ]
        return found + refused
    finally:
        node.close()


def _refusals(trial: Callable[[], None]) -> list[str]:
    try:
        trial()
    except VelodromeError as error:
        return [str(error)]
    return []


def _try_limits(cluster: EmulatedCluster, *, slows: bool) -> None:
    limits = Limits(cluster, [_PROBE])
    try:
        if slows:
            limits.prepare_slowing(_PROBE)
    finally:
        limits.close()


def _try_queues(cluster: EmulatedCluster, node: Node) -> None:
    try:
        for words in queues(cluster, "lo", latency=None):
            node.run(*words)
            node.run("tc", "qdisc", "del", "dev", "lo", "root")
    except VelodromeError as error:
        raise VelodromeError(f"--on emulated: bandwidth cannot be limited ({error}); leave it out") from error


def _try_delay(cluster: EmulatedCluster, node: Node) -> None:
    if delayed_by(cluster, node) != "user space":
        node.run("ip", "link", "add", "bridge", "type", "bridge")
        node.run("ip", "link", "add", "port1", "type", "veth", "peer", "name", "port2")

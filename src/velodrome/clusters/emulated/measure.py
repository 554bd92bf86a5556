"""Whether this machine can emulate a cluster, tried before a run begins, and how accurate the emulation is: bandwidth
and round-trip time between two nodes, measured next to what was asked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from velodrome.clusters.emulated import EmulatedCluster
from velodrome.clusters.emulated.network import Network, delayed_by, queues
from velodrome.clusters.emulated.node import Limits, Node
from velodrome.errors import VelodromeError

_PORT = 19999
_LIMIT_SECONDS = 15.0
#: How long bytes are sent: at least so many seconds, and so many round trips, within which TCP reaches full speed.
_SECONDS, _ROUND_TRIPS, _MOST_SECONDS = 0.6, 30, 3.0
#: Both ends of a connection, standard library only. The first node answers and counts bytes; the second one sends.
_RECEIVE = """
import json, socket, sys, time
with socket.create_server(("", int(sys.argv[1]))) as listener:
    print("ready", flush=True)
    link, _ = listener.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(20):
        link.sendall(link.recv(1))
    skip = float(link.recv(16).decode()) / 2
    began, counted, since, last = None, 0, None, None
    while data := link.recv(1 << 20):
        last = time.perf_counter()
        began = began or last
        if since is not None:
            counted += len(data)
        elif last - began > skip:
            since = last
    print(json.dumps(8 * counted / (last - since) if counted else 0.0), flush=True)
"""
_SEND = """
import json, socket, sys, time
link = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(20):
    began = time.perf_counter()
    link.sendall(b"x")
    link.recv(1)
    trips.append(time.perf_counter() - began)
trip = sorted(trips)[len(trips) // 2]
seconds, times, most = map(float, sys.argv[3:])
seconds = min(most, max(seconds, times * trip))
link.sendall(f"{seconds:16.6f}".encode())
block, end = bytes(1 << 16), time.perf_counter() + seconds
link.sendall(block)
while time.perf_counter() < end:
    link.sendall(block)
print(json.dumps([trip, min(trips)]))
"""


def measure(cluster: EmulatedCluster, network: Network, limited_by: str | None = None) -> dict[str, Any]:
    """What was asked for, what emulates it, what two nodes measure, and the second as a multiple of the first.

    The measurement is missing for a single node.
    """
    asked = {"nodes": cluster.nodes, "bandwidth": cluster.bandwidth, "latency": cluster.latency,
             "cpu": cluster.cpu, "memory": cluster.memory}
    _tune(cluster, network)
    made_by = {"latency": network.links.delayed_by, "limits": limited_by}
    measured = _measured(network) if len(network.nodes) > 1 else None
    accuracy = {
        name: round(measured[name] / wanted, 3) for name in ("bandwidth", "latency")
        if measured is not None and isinstance(wanted := asked[name], float)
    }
    return {"asked": asked, "made_by": made_by, "measured": measured, "accuracy": accuracy}


def _tune(cluster: EmulatedCluster, network: Network) -> None:
    """Let packets leave as much earlier as the emulation itself takes.

    That is seen in the quickest round trip: what the others took longer is due to a busy machine, which may be idle by
    the time that packets are sent, and they must not be early then.
    """
    if cluster.latency is None or network.links.delayed_by != "user space" or len(network.nodes) < 2:
        return
    if (measured := _measured(network, seconds=0.0, round_trips=0)) is not None:
        network.links.lead(min(cluster.latency, max(0.0, measured["least_latency"] - cluster.latency)))


def _measured(
    network: Network, seconds: float = _SECONDS, round_trips: int = _ROUND_TRIPS
) -> dict[str, float] | None:
    """Bits per second, round-trip time, half of it and of the least, between the first two nodes; None if that takes
    too long."""
    first, second = network.nodes[:2]
    python = [sys.executable, "-I", "-S", "-c"]
    lengths = [str(number) for number in (seconds, round_trips, _MOST_SECONDS)]
    with subprocess.Popen(
        first.enter([*python, _RECEIVE, str(_PORT)]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as receiver:
        try:
            assert receiver.stdout is not None
            receiver.stdout.readline()
            sent = subprocess.run(
                second.enter([*python, _SEND, first.address, str(_PORT), *lengths]), stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=_LIMIT_SECONDS,
            )
            trip, least = (float(each) for each in json.loads(sent.stdout))
            rate = float(json.loads(receiver.communicate(timeout=_LIMIT_SECONDS)[0]))
        except (subprocess.TimeoutExpired, ValueError, TypeError):
            return None
        finally:
            receiver.kill()
    return {"bandwidth": rate, "round_trip": trip, "latency": trip / 2, "least_latency": least / 2}


_PROBE = "probe"


def lacking(cluster: EmulatedCluster, *, slows: bool = False) -> list[str]:
    """What this machine lacks to emulate a cluster, a sentence each; `slows` if a fault slows nodes down."""
    lacks = _refusals(lambda: _try_limits(cluster, slows=slows))
    node = Node(_PROBE, "", None)
    try:
        if not (refused := _refusals(node.wait_until_ready)):
            refused = [
                *_refusals(lambda: _try_queues(cluster, node)),
                *_refusals(lambda: _try_delay(cluster, node)),
            ]
        return lacks + refused
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

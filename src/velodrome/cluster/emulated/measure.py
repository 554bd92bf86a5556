"""How accurate the emulation is: bandwidth and round-trip time between two nodes, measured next to what was asked."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from velodrome.cluster.emulated.nodes import Network
from velodrome.cluster.emulated.request import EmulatedCluster

_PORT = 19999
_SECONDS = 15.0
#: Both ends of a connection: the first node receives, the second one measures. Standard library only.
_RECEIVE = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as listener:
    print("ready", flush=True)
    link, _ = listener.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(20):
        link.sendall(link.recv(1))
    while link.recv(1 << 20):
        pass
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
block, sent, end = bytes(1 << 16), 0, time.perf_counter() + float(sys.argv[3])
skipped = None
began = time.perf_counter()
while (now := time.perf_counter()) < end:
    if skipped is None and now - began > float(sys.argv[3]) / 3:  # buffers are full by now
        skipped, began_full = sent, now
    link.sendall(block)
    sent += len(block)
rate = 8 * (sent - skipped) / (time.perf_counter() - began_full)
print(json.dumps({"bandwidth": rate, "round_trip": sorted(trips)[len(trips) // 2]}))
"""


def measure(cluster: EmulatedCluster, network: Network, seconds: float = 0.6) -> dict[str, Any]:
    """What was asked for and what two nodes measure; the measurement is missing for a single node."""
    asked = {"nodes": cluster.nodes, "bandwidth": cluster.bandwidth, "latency": cluster.latency,
             "cpu": cluster.cpu, "memory": cluster.memory}
    if len(network.nodes) < 2:
        return {"asked": asked, "measured": None}
    first, second = network.nodes[:2]
    python = [sys.executable, "-I", "-S", "-c"]
    with subprocess.Popen(
        first.enter([*python, _RECEIVE, str(_PORT)]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as receiver:
        try:
            assert receiver.stdout is not None
            receiver.stdout.readline()
            done = subprocess.run(
                second.enter([*python, _SEND, first.address, str(_PORT), str(seconds)]), stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=_SECONDS,
            )
            measured = json.loads(done.stdout) if done.returncode == 0 else None
        except (subprocess.TimeoutExpired, ValueError):
            measured = None
        finally:
            receiver.kill()
    return {"asked": asked, "measured": measured}

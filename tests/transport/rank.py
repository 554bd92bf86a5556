"""One MPI rank for the tests: `rank.py RANK HOSTS PORT SECONDS SCENARIO`, its findings as one JSON line."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

from velodrome.catalog import segments
from velodrome.errors import VelodromeError
from velodrome.transport.base import Ranks
from velodrome.transport.mpi import MpiTransport


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def lost(message: str) -> None:
    say(lost=message)
    os._exit(3)


def sums(transport: MpiTransport) -> None:
    rank, size = transport.rank, transport.size
    whole = np.arange(1000, dtype=np.float64) + rank
    transport.all_reduce(whole)
    single = np.full(300_000, rank + 1, dtype=np.float32)
    transport.all_reduce(single)
    shared = np.full(7, rank, dtype=np.int64)
    transport.broadcast(shared, root=size - 1)
    transport.barrier()
    memory = transport.shared((size, 1001), np.float32)
    seen = None
    if memory is not None:
        assert not memory.any(), "shared memory begins as zeros"
        transport.barrier()
        memory[rank] = rank + 1
        transport.barrier()
        seen = memory[:, -1].tolist()
    listening = os.popen(f"ss -tlnp 2>/dev/null | grep pid={os.getpid()},").read().split("\n")
    say(
        whole=whole[:3].tolist(), single=float(single[-1]), shared=int(shared[0]),
        seen=seen,
        listening=[line.split()[3] for line in listening if line],
    )
    transport.close()


def late(transport: MpiTransport) -> None:
    """Rank 1 joins a sum only when a thread of rank 0 has run for a while, whose main thread waits in that sum."""
    file = Path(os.environ["BEATS"])

    def beat() -> None:
        for _ in range(20):
            time.sleep(0.02)
        file.touch()

    if transport.rank == 0:
        threading.Thread(target=beat).start()
    else:
        deadline = time.monotonic() + 100
        while not file.exists():
            assert time.monotonic() < deadline, "no thread runs beside a sum"
            time.sleep(0.01)
    whole = np.ones(1)
    transport.all_reduce(whole)
    say(whole=whole[0])
    transport.close()


def hang(transport: MpiTransport) -> None:
    say(pid=os.getpid(), ready=True)
    buffer = np.ones(1000)
    while True:
        transport.all_reduce(buffer)
        if transport.rank == 1:
            time.sleep(0.01)


def fail(transport: MpiTransport) -> None:
    """Rank 1 ends by an error of its own: neither it nor the other may hang."""
    if transport.rank == 1:
        raise SystemExit(5)
    transport.all_reduce(np.ones(10))


def named(transport: MpiTransport) -> None:
    """What MPICH called its segment, for a test that keeps the name from being removed."""
    say(job=transport._rendezvous.job, segments=[path.name for path in segments.mapped()])
    transport.close()


def main() -> None:
    rank, hosts, port, seconds, scenario = sys.argv[1:]
    if scenario == "named":
        segments.remove = lambda paths: None
    elif scenario == "unknown-hash":
        segments.pattern = lambda job: f"no-segment-of-{job}-*"
    names = tuple(hosts.split(","))
    try:
        transport = MpiTransport(Ranks(names[0], int(port), int(rank), names), float(seconds), lost)
    except VelodromeError as error:
        say(error=type(error).__name__, message=str(error))
        return
    scenarios = {"sums": sums, "unknown-hash": sums, "late": late, "hang": hang, "fail": fail, "named": named}
    scenarios[scenario](transport)


if __name__ == "__main__":
    main()

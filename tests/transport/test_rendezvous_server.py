"""The end of the rendezvous server: the ranks that are left know at once, and what the job had in memory goes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from velodrome.transport.rendezvous_server import PROTOCOL

#: The server, with a tidying that waits for a byte before it is done.
SERVER = """
import os
from velodrome.offers import segments
from velodrome.transport import rendezvous_server

def remove_job(job):
    print("tidying", flush=True)
    os.read(int(os.environ["WAIT_FOR"]), 1)
    print("tidied", flush=True)

segments.remove_job = remove_job
rendezvous_server.main()
"""


@pytest.mark.integration
def test_the_ranks_know_that_the_server_ends_before_it_tidies_up_and_no_signal_ends_the_tidying() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        waited_for, writer = os.pipe()
        words = ["--listener", str(listener.fileno()), "--hosts", "127.0.0.1,127.0.0.1", "--seconds", "60"]
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"WAIT_FOR": str(waited_for)}, pass_fds=[listener.fileno(), waited_for],
        )
    ranks = {}
    for rank in range(2):
        for kind in ("pmi", "liveness"):
            ranks[kind, rank] = socket.create_connection(address, timeout=20)
            ranks[kind, rank].sendall(f"{PROTOCOL} {kind} {rank}\n".encode())
    liveness = ranks["liveness", 1]
    assert liveness.recv(100).startswith(b"complete ")

    server.stdin.close()
    assert server.stdout.readline() == "tidying\n"
    server.send_signal(signal.SIGTERM)
    assert liveness.recv(100) == b""
    os.write(writer, b"x")
    assert server.stdout.readline() == "tidied\n"
    assert server.wait(20) == 0
    for link in ranks.values():
        link.close()
    os.close(waited_for)
    os.close(writer)

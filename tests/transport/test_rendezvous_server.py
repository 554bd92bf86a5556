"""The rendezvous server: only the ranks of its job can end or confuse it; when it ends, the ranks that are left know
at once, and what the job had in memory goes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from velodrome.transport.rendezvous_server import PROTOCOL, RendezvousServer
from velodrome.transport.sockets import connect

#: The server, with a tidying that waits for a byte before it is done.
SERVER = """
import os
from velodrome.catalog import segments
from velodrome.transport import rendezvous_server

def remove_job(job):
    print("tidying", flush=True)
    os.read(int(os.environ["WAIT_FOR"]), 1)
    print("tidied", flush=True)

segments.remove_job = remove_job
rendezvous_server.main()
"""


@pytest.mark.integration
@pytest.mark.usefixtures("secret")
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
            ranks[kind, rank] = connect(address, PROTOCOL, [kind, str(rank)], 20)
    liveness = ranks["liveness", 1]
    liveness.settimeout(20)
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


@pytest.mark.usefixtures("secret")
def test_nothing_that_a_rank_sends_ends_the_server() -> None:
    """A rank that sends what MPICH never does loses its own connection at most."""
    listener, (theirs, ours) = socket.create_server(("127.0.0.1", 0)), os.pipe()
    address = listener.getsockname()
    server = RendezvousServer(listener, ["127.0.0.1"] * 2, 60, theirs)
    thread = threading.Thread(target=server.serve)
    thread.start()
    for words in (["pmi", "²"], ["pmi", "٣"], ["liveness", "9" * 300], ["pmi"], ["other", "0"]):
        connect(address, PROTOCOL, words, 20).close()
    ranks = {(kind, rank): connect(address, PROTOCOL, [kind, str(rank)], 20)
             for kind in ("pmi", "liveness") for rank in range(2)}
    strange = ranks["pmi", 1]
    for line in (b"", b"cmd=put", b"cmd=get", b"cmd=put key=a", b"cmd=abort exitcode=1", b"=", b"cmd=barrier_in",
                 b"cmd=barrier_in", b"\xff" * 300, b"cmd=" + b"a" * 60_000):
        strange.sendall(line + b"\n")
    ranks["pmi", 0].sendall(b"cmd=put key=a value=b\ncmd=get key=a\n")
    ranks["pmi", 0].settimeout(20)
    answers = b""
    while not answers.endswith(b"value=b\n"):
        answers += ranks["pmi", 0].recv(4096)
    assert b"barrier_out" not in answers, "one rank twice is not two ranks"
    with contextlib.suppress(ConnectionError):
        strange.sendall(b"a" * 1_000_000)
        strange.settimeout(20)
        while strange.recv(4096):
            pass
    assert thread.is_alive()
    os.close(ours)
    thread.join(20)
    assert not thread.is_alive()
    server.close()
    os.close(theirs)
    for link in ranks.values():
        link.close()

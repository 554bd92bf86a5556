"""What MPICH learns from us about the ranks of a job, without MPICH."""

import socket

import pytest

from velodrome.errors import RunFailed
from velodrome.transport import rendezvous_server
from velodrome.transport.mpi import _check_size
from velodrome.transport.rendezvous_server import process_mapping

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("hosts", "mapping"),
    [
        (["a"], "(vector,(0,1,1))"),
        (["a", "a", "a"], "(vector,(0,1,3))"),
        (["a", "b"], "(vector,(0,1,1),(1,1,1))"),
        (["a", "a", "b", "a"], "(vector,(0,1,2),(1,1,1),(0,1,1))"),
    ],
)
def test_ranks_of_one_host_share_a_node_and_others_do_not(hosts, mapping):
    assert process_mapping(hosts) == mapping


def test_a_value_that_one_rank_puts_is_what_the_others_get():
    space = rendezvous_server.KeyValueSpace("job", ["a", "b"])
    assert space.answer({"cmd": "get", "key": "card-0"}) == "cmd=get_result rc=-1 msg=unknown value=unknown"
    assert space.answer({"cmd": "put", "key": "card-0", "value": "x=y"}) == "cmd=put_result rc=0 msg=success"
    assert space.answer({"cmd": "get", "key": "card-0"}) == "cmd=get_result rc=0 msg=success value=x=y"
    assert space.answer({"cmd": "get", "key": "PMI_process_mapping"}).endswith("value=(vector,(0,1,1),(1,1,1))")
    assert space.answer({"cmd": "get_universe_size"}) == "cmd=universe_size rc=0 size=2"
    assert space.answer({"cmd": "get_my_kvsname"}) == "cmd=my_kvsname rc=0 kvsname=job"
    assert space.answer({"cmd": rendezvous_server.BARRIER_IN}) is None
    assert space.answer({"cmd": "unheard_of"}) is None


def test_the_last_request_of_mpich_is_answered_after_the_server_is_gone():
    ours, server = socket.socketpair()
    descriptor = ours.fileno()
    server.close()
    rendezvous_server.retire(ours)
    with socket.socket(fileno=descriptor) as seen_by_mpich:
        seen_by_mpich.sendall(b"cmd=finalize\n")
        assert seen_by_mpich.recv(100) == b"cmd=finalize_ack rc=0\n"


def test_an_mpi_that_started_alone_is_refused():
    with pytest.raises(RunFailed, match=r"MPI started with 1 rank\(s\) instead of 2: .* choose a strategy without MPI"):
        _check_size(1, 2)
    _check_size(2, 2)

"""What the meeting point tells MPICH about who shares a machine."""

import pytest

from velodrome.transport.pmi_server import process_mapping

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

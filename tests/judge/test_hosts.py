"""A result's hosts in words."""

import pytest

from synthetic_races import result
from typed_judge import as_result
from velodrome.judge.conditions import host_lines

pytestmark = pytest.mark.unit

HOST = {
    "hostname": "node1", "interpreter": "/usr/bin/python3", "python": "3.11.7", "versions": {}, "cores": 8,
    "memory_bytes": 16 << 30, "gpus": [],
}


@pytest.mark.parametrize(
    ("hosts", "lines"),
    [
        ([HOST], ["node1: 8 cores, 16 GiB memory, Python 3.11.7 in /usr/bin/python3"]),
        (
            [{**HOST, "gpus": ["Tesla T4", "Tesla T4"]}, {**HOST, "hostname": "node2"}],
            [
                "node1: 8 cores, 16 GiB memory, 2 × Tesla T4, Python 3.11.7 in /usr/bin/python3",
                "node2: 8 cores, 16 GiB memory, Python 3.11.7 in /usr/bin/python3",
            ],
        ),
        ([], []),
    ],
)
def test_each_host_is_one_line(hosts, lines):
    assert host_lines(as_result(result(hosts=1) | {"hosts": hosts})) == lines


def test_a_result_of_an_earlier_version_has_no_hosts():
    assert host_lines(as_result(result())) == []

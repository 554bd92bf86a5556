"""What `--on emulated:…` asks for is read as it is written, and refused in one sentence where it cannot be."""

from __future__ import annotations

import pytest

from velodrome.clusters import launcher_named
from velodrome.clusters.emulated import EmulatedCluster, parse
from velodrome.errors import BadRequest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", EmulatedCluster()),
        ("nodes=9", EmulatedCluster(nodes=9)),
        ("nodes=9,bandwidth=1gbit", EmulatedCluster(nodes=9, bandwidth=1e9)),
        ("bandwidth=100Mbit, cpu=0.5, memory=2g", EmulatedCluster(bandwidth=1e8, cpu=0.5, memory=2 * 2**30)),
        ("latency=0.5ms,memory=512m", EmulatedCluster(latency=0.0005, memory=512 * 2**20)),
    ],
)
def test_a_cluster_is_read(text: str, expected: EmulatedCluster) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("nodes=0", "nodes='0' is not a number from 1 to 200"),
        ("nodes=201", "nodes='201'"),
        ("nodes=²", "nodes='²'"),
        ("nodes=" + "9" * 5000, "is not a number from 1 to 200"),
        ("nodes=2,nodes=3", "given twice"),
        ("bandwidth=", "'bandwidth=' has no value"),
        ("speed=1gbit", "'speed=1gbit' is none of nodes, bandwidth"),
        ("nodes", "'nodes' is none of"),
        ("bandwidth=1", "write it as bandwidth=1gbit"),
        ("bandwidth=-1gbit", "bandwidth='-1gbit'"),
        ("latency=5", "write it as latency=0.5ms"),
        ("cpu=0", "cpu='0'"),
        ("memory=2tb", "memory='2tb'"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, part: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(text)
    assert part in str(refused.value)


def test_a_launcher_without_options_refuses_them() -> None:
    assert launcher_named("emulated:nodes=3").name == "emulated"
    with pytest.raises(BadRequest, match="takes no options"):
        launcher_named("local:nodes=3")

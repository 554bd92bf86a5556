"""A Ray cluster that wants a token: a user who has it trains there, and everyone else is told what is missing."""

from __future__ import annotations

import json
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import ray_hosts

pytestmark = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("ray token"),
    pytest.mark.skipif(bool(ray_hosts.unavailable()), reason=ray_hosts.unavailable() or "available"),
]
JOB = ("train", "--dataset", "digits", "--model", "linear", "--epochs", 1, "--engine", "torch", "--strategy", "ddp",
       "--workers", 2)
TOKEN, OTHER = secrets.token_hex(32), secrets.token_hex(32)
WHERE = "RAY_AUTH_TOKEN, the file of RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ray_hosts.RayHosts]:
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with ray_hosts.ray_hosts(tmp_path_factory.mktemp("token"), settings=settings) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's home without a token."""
    return tmp_path


def train(hosts: ray_hosts.RayHosts, on: str, home: Path, **variables: str) -> tuple[int, str]:
    """The exit code of a training and what it printed as an error."""
    process = hosts.velodrome(*JOB, "--on", on, HOME=str(home), **variables)
    _, errors = process.communicate(timeout=240)
    return process.returncode, errors.strip()


def test_the_token_of_a_file_at_home_trains(hosts: ray_hosts.RayHosts, home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(TOKEN)
    code, errors = train(hosts, "farm", home, RAY_AUTH_MODE="token")
    assert code == 0, errors
    assert not [line for node in hosts.nodes for line in hosts.workers(node.name).values()]


@pytest.mark.parametrize(("variables", "sentence"), [
    ({"RAY_AUTH_MODE": "disabled"}, "the Ray cluster at '{address}' requires a token: set RAY_AUTH_MODE=token, and put "
     f"the cluster's token into {WHERE}"),
    ({"RAY_AUTH_MODE": "token"}, "RAY_AUTH_MODE is 'token', and there is no token for the Ray cluster at '{address}': "
     f"put the cluster's into {WHERE}"),
    ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": OTHER}, "the Ray cluster at '{address}' refuses the token: put the "
     f"cluster's own into {WHERE}, of which the first one counts"),
    ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/nowhere"}, "the token for the Ray cluster at '{address}' "
     "cannot be read: RAY_AUTH_TOKEN_PATH is set but file cannot be opened or is empty: /nowhere"),
], ids=["no mode", "no token", "wrong token", "no file"])
def test_a_token_that_is_missing_or_wrong_is_one_sentence(
    hosts: ray_hosts.RayHosts, home: Path, variables: dict[str, str], sentence: str
) -> None:
    assert train(hosts, "farm", home, **variables) == (1, "velodrome: Ray: " + sentence.format(address=hosts.address))


def test_an_address_where_nothing_answers_is_named(hosts: ray_hosts.RayHosts, home: Path) -> None:
    on = f"ray:{hosts.controller.address}:6380"
    sentence = (f"Ray: nothing answers at '{hosts.controller.address}:6380' (Connection refused): is Ray started "
                "there, and can its port be reached?")
    assert train(hosts, on, home) == (1, f"velodrome: {sentence}")
    out, _ = hosts.velodrome("doctor", "--on", on, "--json").communicate(timeout=100)
    assert [found["sentence"] for found in json.loads(out)["findings"]] == [sentence]


def test_ctrl_c_while_resources_are_awaited_ends_at_once(hosts: ray_hosts.RayHosts, home: Path) -> None:
    """The driver notices the end of the command while it waits for what is not free."""
    user = {"HOME": str(home), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    hosts.write_clusters(cpus=4, reserve_timeout=500)
    try:
        process = hosts.velodrome(*JOB, "--on", "farm", **user)
        deadline = time.monotonic() + 120
        while not any("velodrome.clusters.ray.driver" in line
                      for line in hosts.processes(hosts.controller.name).values()):
            assert time.monotonic() < deadline, "no driver was started"
            time.sleep(0.2)
        time.sleep(8)  # Ray is joined and waits; earlier or later, the end must be the same
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
        assert not [line for line in hosts.processes(hosts.controller.name).values()
                    if "velodrome.clusters.ray.driver" in line]
    finally:
        hosts.write_clusters()

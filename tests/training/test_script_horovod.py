"""The rendezvous that scripts with Horovod use: keys over HTTP, from the moment that Horovod is imported."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from velodrome.catalog.world import Member, World
from velodrome.clusters.local.launcher import free_port
from velodrome.errors import RunFailed
from velodrome.training.script import rendezvous
from velodrome.transport import horovod_rendezvous

#: A beginning that stops, no HTTP, an endless line, and a body that does not come.
ATTACKS = (b"GET /", os.urandom(4000), b"GET /" + b"a" * 200_000, b"PUT /x/y HTTP/1.1\r\nContent-Length: 9999\r\n\r\n")
pytestmark = pytest.mark.usefixtures("secret")


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


def attack(port: int) -> None:
    """What nobody of the job sends, more of it than the server takes at a time."""
    half_open = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(horovod_rendezvous._MOST + 50)]
    for link, data in zip(half_open, itertools.cycle(ATTACKS), strict=False):
        with contextlib.suppress(OSError):
            link.sendall(data)
    for link in half_open[::2]:
        link.close()


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Member, ...]]:
    """Two ranks, and a package of Horovod's name that can be imported."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    yield tuple(Member("worker", rank, "127.0.0.1", free_port("127.0.0.1")) for rank in range(2))
    sys.modules.pop("horovod", None)


def test_rank_0_keeps_keys_for_the_others_as_soon_as_horovod_is_imported(members: tuple[Member, ...]) -> None:
    port = members[0].port
    with rendezvous(World(members, members[0]), 5):
        with pytest.raises(OSError):
            ask(port, "GET", "/global/0")
        import horovod  # noqa: F401

        # As Horovod makes the addresses of its requests.
        server, number = (os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{name}"] for name in ("ADDR", "PORT"))
        path = f"http://{server}:{number}/global/0".removeprefix(f"http://127.0.0.1:{port}")
        assert ask(port, "GET", path) == (404, b"")
        assert ask(port, "PUT", path, b"\x00address") == (200, b"")
        assert ask(port, "GET", path) == (200, b"\x00address")
        assert ask(port, "DELETE", path) == (200, b"")
        assert ask(port, "GET", path) == (200, b"\x00address"), "others may be late"
        for strange in ("/global/0", "/:1/global/0", "//global/0", f"/{'0' * 64}:{port}/global/0", path.upper()):
            assert ask(port, "PUT", strange, b"mine") == (403, b"")
        attack(port)
        assert ask(port, "GET", path) == (200, b"\x00address"), "nobody else changes it"
    with pytest.raises(OSError):
        ask(port, "GET", "/global/0")


def test_another_rank_waits_for_rank_0_and_not_for_ever(members: tuple[Member, ...]) -> None:
    with rendezvous(World(members, members[1]), 0.2), pytest.raises(RunFailed, match="rank 0 did not import Horovod"):
        import horovod  # noqa: F401

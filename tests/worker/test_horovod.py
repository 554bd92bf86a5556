"""The rendezvous that scripts with Horovod use: keys over HTTP, from the moment that Horovod is imported."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from velodrome.cluster.local.ports import free_port
from velodrome.errors import RunFailed
from velodrome.offers.world import Member, World
from velodrome.worker.horovod import rendezvous


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


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

        assert ask(port, "GET", "/global/0") == (404, b"")
        assert ask(port, "PUT", "/global/0", b"\x00address") == (200, b"")
        assert ask(port, "GET", "/global/0") == (200, b"\x00address")
        assert ask(port, "DELETE", "/global/0") == (200, b"")
        assert ask(port, "GET", "/global/0") == (200, b"\x00address"), "others may be late"
    with pytest.raises(OSError):
        ask(port, "GET", "/global/0")


def test_another_rank_waits_for_rank_0_and_not_for_ever(members: tuple[Member, ...]) -> None:
    with rendezvous(World(members, members[1]), 0.2), pytest.raises(RunFailed, match="rank 0 did not import Horovod"):
        import horovod  # noqa: F401

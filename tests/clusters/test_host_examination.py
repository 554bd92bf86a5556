"""Examinations of hosts end within their limits, and each finding names host, cause and fix."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from velodrome.clusters.launcher import Finding
from velodrome.clusters.plan import Plan
from velodrome.clusters.remote import RemoteOptions, checks
from velodrome.clusters.remote.checks import loopback
from velodrome.clusters.remote.launcher import RemoteLauncher
from velodrome.clusters.remote.link import HostError, HostLost, Link, Ran
from velodrome.clusters.remote.starting import Code, Request
from velodrome.errors import Unavailable
from velodrome.job.job import Job

pytestmark = pytest.mark.unit


class FakeLink:
    """A host whose answers are given."""

    def __init__(self, host: str, **errors: HostError) -> None:
        self.host, self.errors, self.asked = host, errors, list[tuple[str, Any]]()
        self.facts: dict[str, Any] = {"folder": "/root/sessions/s", "root": "/root", "host": host, "cores": 2}
        self.lost, self.clock_offset = None, 0.0

    def ask(self, do: str, body: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        self.asked.append((do, fields))
        if do in self.errors:
            raise self.errors[do]
        return {"there": False, "path": "/root/code/x"}, b""

    def put(self, source: Any, path: str, **fields: Any) -> str:
        return path

    def run(self, words: list[str], **fields: Any) -> Ran:
        self.asked.append(("run", fields))
        if "run" in self.errors:
            return Ran(None, errors=str(self.errors["run"]))
        return Ran(0)


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    released = threading.Event()
    yield released
    released.set()


def request(tmp_path: Path, **options: Any) -> Request:
    (tmp_path / "nets.py").write_text("")
    job = Job.model_validate({})
    return Request(Plan("doctor", job, ()), Path(), "t", Code({"nets.py": tmp_path / "nets.py"}),
                   RemoteOptions.model_validate(options), {"a": "python3", "b": "python3"}, False)


def examined(tmp_path: Path, link: FakeLink) -> list[Finding]:
    links: Any = [link]
    return checks.code_and_data(links, request(tmp_path))


def test_a_check_that_hangs_on_a_host_ends_within_its_limit_and_names_the_host(hanging: threading.Event) -> None:
    def check(link: Link) -> list[Finding]:
        if link.host == "b":
            hanging.wait(60)
        return []

    links: Any = [FakeLink("a"), FakeLink("b")]
    began = time.monotonic()
    found = checks.everywhere(links, "data", check, limit=0.3)
    assert time.monotonic() - began < 10
    assert [finding.sentence for finding in found] == [
        "host 'b': its check of data did not end within 0.3 s; see whether it is up, and not overloaded"
    ]


def test_a_group_of_checks_that_hangs_ends_within_its_limit(hanging: threading.Event) -> None:
    def hang() -> list[Finding]:
        hanging.wait(60)
        return []

    began = time.monotonic()
    found, _ = checks.examine({"names": hang, "disk": list}, None, limit=0.3)
    assert time.monotonic() - began < 10
    assert [(one.check, one.message) for one in found] == [("names", "the check of names did not end within 0.3 s")]


def test_a_host_that_is_lost_is_named_in_its_own_field() -> None:
    def check(link: Link) -> list[Finding]:
        raise HostLost("'a' closed the connection")

    links: Any = [FakeLink("a")]
    found = checks.everywhere(links, "names", check)
    assert [(one.check, one.host, one.message) for one in found] == [("reachable", "a", "it closed the connection")]


def test_data_are_prepared_within_a_limit_that_a_person_accepts(tmp_path: Path) -> None:
    link = FakeLink("a", run=HostError("it did not end within 240 s"))
    found = examined(tmp_path, link)
    assert [(one.check, one.host) for one in found] == [("data", "a")]
    assert "it did not end within 240 s; give it a mirror" in found[0].sentence
    assert [fields["limit"] for do, fields in link.asked if do == "run"] == [240.0]


def test_code_that_a_host_cannot_take_is_no_fault_of_its_data(tmp_path: Path) -> None:
    found = examined(tmp_path, FakeLink("a", unpack=HostError("'a': Read-only file system (/root/code)")))
    assert [finding.sentence for finding in found] == [
        "host 'a': Read-only file system (/root/code); set root in clusters.yaml to a writable folder there"
    ]
    assert [finding.check for finding in found] == ["code"]


@pytest.mark.parametrize(("machines", "wrong"), [(("one", "two"), ["a"]), (("one", "one"), [])])
def test_a_loopback_address_is_refused_where_hosts_are_several_machines(
    machines: tuple[str, str], wrong: list[str]
) -> None:
    links: Any = [FakeLink("a"), FakeLink("b")]
    for link, name in zip(links, machines, strict=True):
        link.facts["host"] = name
    found = loopback(links, {"a": "127.0.0.1", "b": "10.0.0.2"})
    assert [finding.host for finding in found] == wrong
    assert all("its address '127.0.0.1' leads every other host to itself" in one.sentence for one in found)
    assert [one.host for one in loopback(links, {"a": "::1", "b": "localhost"})] == ["a", "b"][: 2 * len(wrong)]


class FakeLauncher(RemoteLauncher):
    """A launcher whose hosts are there."""

    name = "fake"

    def __init__(self, *links: Any) -> None:
        super().__init__(RemoteOptions.model_validate({}))
        self.links = {link.host: link for link in links}

    def hosts(self) -> list[str]:
        return [*self.links]

    def open_channel(self, host: str, session: str) -> Any:
        raise NotImplementedError

    def part(self, hosts: Any) -> Any:
        raise NotImplementedError

    def address(self, link: Any) -> str:
        return "127.0.0.1" if link.host == "localhost" else "10.0.0.2"


def test_a_job_on_this_machine_and_another_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    launcher = FakeLauncher(FakeLink("localhost"), FakeLink("b"))
    with pytest.raises(Unavailable, match=r"host 'localhost': its address '127.0.0.1' leads every other host"):
        launcher.check(Job.model_validate({"engine": "torch", "strategy": "ddp", "workers": 2}))


def test_the_code_that_is_sent_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("")
    job = Job.model_validate({"engine": "torch", "strategy": "ddp", "workers": 2, "model": "nets:net"})
    launcher = FakeLauncher(FakeLink("a"), FakeLink("b"))
    recorded = launcher.allocate(job).facts["code"]
    assert recorded == {"of": ["nets"], "checksum": launcher.code(job).checksum, "files": 2, "bytes": 14}
    assert "code" not in launcher.allocate(job.model_copy(update={"model": "lenet5"})).facts

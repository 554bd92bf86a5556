"""`velodrome doctor` for this machine: what cannot be emulated is found before a run begins, and measured on demand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from velodrome.clusters.emulated import EmulatedCluster, measure, network
from velodrome.machine import cores_of_others

JOB = ("--engine", "torch", "--strategy", "ddp", "--workers", 2)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@needs_root
@pytest.mark.unit
def test_what_cannot_be_emulated_is_a_finding_and_no_run_begins(
    velodrome: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = ["--on emulated: latency needs netem", "--on emulated: this kernel cannot limit memory; leave it out"]
    monkeypatch.setattr("velodrome.clusters.emulated.launcher.lacking", lambda cluster, slows: lacks)
    found = velodrome("doctor", "--on", "emulated:latency=1ms", "--measure", *JOB, "--json")
    assert found.code == 1
    assert [finding["message"] for finding in found.json()["findings"]] == lacks
    done = velodrome("train", "--on", "emulated:latency=1ms", *JOB, "--runs", runs)
    assert (done.code, lacks[0] in done.err) == (2, True)
    assert not runs.exists()


@pytest.mark.unit
@pytest.mark.parametrize("launcher", ["local", "debug"])
def test_one_host_has_nothing_to_measure(velodrome: Any, launcher: str) -> None:
    done = velodrome("doctor", "--on", launcher, "--engine", "torch", "--strategy", "single", "--measure")
    assert done.code == 0, done.text
    assert f"ok: --on {launcher} has one host, so there is nothing to measure" in done.out


@needs_root
@pytest.mark.integration
def test_what_the_kernel_lacks_is_found_by_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reasons := measure.lacking(EmulatedCluster(bandwidth=1e9)):
        pytest.skip(reasons[0])
    monkeypatch.setattr(network, "has_netem", lambda node: False)
    monkeypatch.setattr(network, "_TUN", tmp_path / "tun")
    (sentence,) = measure.lacking(EmulatedCluster(latency=0.001))
    assert "latency needs netem, which this kernel lacks, or" in sentence
    assert "leave latency out" in sentence


@needs_root
@pytest.mark.integration
def test_emulated_hosts_are_measured(velodrome: Any) -> None:
    if reasons := measure.lacking(EmulatedCluster(bandwidth=1e8)):
        pytest.skip(reasons[0])
    told = velodrome("doctor", "--on", "emulated:bandwidth=100mbit", "--measure", *JOB, "--json").json()
    (pair,) = told["pairs"]
    assert (pair["from"], pair["to"]) == ("node2", "node1")
    assert 2e7 < pair["bandwidth"] < 2e8
    # Other programs may use this machine: that is a finding of its own.
    assert any(one["message"].startswith("bandwidth 100 Mbit/s asked for, ") for one in told["findings"])


@pytest.mark.unit
@pytest.mark.parametrize(("used", "said"), [(0.05, False), (0.7, True), (None, False)])
def test_other_programs_and_what_they_do_to_races_are_a_warning(
    velodrome: Any, monkeypatch: pytest.MonkeyPatch, used: float | None, said: bool
) -> None:
    monkeypatch.setattr("velodrome.api.clusters.cores_of_others", lambda seconds: used)
    monkeypatch.setattr("velodrome.api.clusters.cores", lambda: 2)
    done = velodrome("doctor", "--on", "local", "--engine", "torch", "--strategy", "single")
    assert done.code == 0, done.text
    assert ("warning: other programs use 0.7 of 2 cores: races take longer" in done.out) == said
    assert ("local: nothing is wrong" in done.out) != said


@pytest.mark.integration
def test_what_a_process_uses_beside_this_one_is_measured() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            used = cores_of_others(0.5)
        finally:
            other.kill()
    assert used is None or used > 0.1

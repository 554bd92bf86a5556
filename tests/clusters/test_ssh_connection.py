"""What the SSH client prints when a host cannot be reached, as a sentence with host, cause and way out."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from velodrome.api.clusters import doctor
from velodrome.clusters.remote import channels
from velodrome.clusters.remote.agent import GREETING
from velodrome.clusters.ssh import SshOptions
from velodrome.clusters.ssh.launcher import SshChannel, SshLauncher, control_folder, reason, remote_words
from velodrome.job.job import Job

pytestmark = pytest.mark.integration  # the client is started

KEX = "kex_exchange_identification: Connection closed by remote host\r\n"


@pytest.mark.parametrize(("errors", "expected"), [
    ("ssh: connect to host 10.0.0.3 port 22: Connection refused\r\n",
     "refuses connections; see whether sshd is running there, on that port"),
    (KEX, "closed the connection: it was shut down, its sshd was ended, or it refuses more connections"),
    (f"ssh: connect to host 10.0.0.2 port 22: Connection refused\r\n{KEX}",
     "cannot be reached: its jump host '10.0.0.2' refuses connections; see whether sshd is running there, on that "
     "port"),
    (f"ssh: Could not resolve hostname gate.invalid: Name or service not known\r\n{KEX}",
     "cannot be reached: its jump host 'gate.invalid' cannot be found: its name does not resolve; set HostName in its "
     "SSH configuration"),
    (f"me@gate: Permission denied (publickey).\r\n{KEX}",
     "cannot be reached: its jump host 'gate' refuses our key (permission denied); check `ssh -o BatchMode=yes gate "
     "true`, the key of ssh-agent or IdentityFile, and authorized_keys there"),
    (f"Host key verification failed.\r\n{KEX}",
     "cannot be reached: its jump host has a host key that is not in known_hosts; run `ssh node3` once, and compare "
     "its fingerprint"),
    (f"channel 0: open failed: connect failed: Connection refused\r\nstdio forwarding failed\r\n{KEX}",
     "refuses connections; see whether sshd is running there, on that port"),
])
def test_the_host_that_failed_is_named_also_if_it_is_a_jump_host(errors: str, expected: str) -> None:
    assert reason(errors, 255, "node3") == expected


def examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: str, config: str) -> list[dict[str, object]]:
    (tmp_path / "config").write_text(config)
    (tmp_path / "clusters.yaml").write_text(
        f"lab:\n  launcher: ssh\n  hosts: [{hosts}]\n  ssh_config: {tmp_path / 'config'}\n"
    )
    monkeypatch.setenv("VELODROME_CLUSTERS", str(tmp_path / "clusters.yaml"))
    found = doctor(Job.model_validate({"engine": "torch", "strategy": "ddp", "workers": 2}), on="lab")
    assert not found["ok"]
    return list(found["findings"])


def test_hosts_that_cannot_be_reached_have_a_finding_each_with_cause_and_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "Host a gate\n  HostName 127.0.0.1\n  Port 1\nHost b\n  HostName 127.0.0.1\n  ProxyJump gate\n"
    found = examined(tmp_path, monkeypatch, "a, b", config)
    sshd = "see whether sshd is running there, on that port"
    assert [(one["check"], one["host"], one["message"], one["fix"]) for one in found] == [
        ("reachable", "a", "it refuses connections", sshd),
        ("reachable", "b", "it cannot be reached: its jump host '127.0.0.1' refuses connections", sshd),
    ]
    assert found[0]["sentence"] == f"host 'a': it refuses connections; {sshd}"
    assert not [*Path("/tmp").glob(f"velodrome-ssh-{os.getpid()}-*")]


def test_a_machine_without_a_client_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = examined(tmp_path, monkeypatch, "a, b", "")
    assert [(one["host"], one["sentence"]) for one in found] == [
        (None, "--on ssh needs the OpenSSH client, but this machine has none; install openssh-client"),
    ]


def test_the_code_that_would_be_sent_is_listed_with_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    job = Job.model_validate({"engine": "torch", "strategy": "ddp", "workers": 2, "model": "nets:net"})
    code = doctor(job, on="ssh:a,b")["code"]
    assert code["files"] == [{"name": "helper.py", "bytes": 0}, {"name": "nets.py", "bytes": 14}]
    assert code["bytes"] == 14
    assert doctor(Job.model_validate({"engine": "torch"}), on="ssh:a")["code"] is None


def test_the_command_has_nothing_that_a_login_shell_of_csh_interprets() -> None:
    line = remote_words(channels.agent_words("session", 30.0, "~/.cache/velodrome"), ["python3"])
    assert "\n" not in line
    assert "!" not in line


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh", "fish", "zsh"])
def test_every_login_shell_starts_the_agent(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    line = remote_words(channels.agent_words("0123456789ab", 30.0, str(tmp_path)), [sys.executable])
    done = subprocess.run([shell, "-c", line], input=channels.agent_source(), capture_output=True, timeout=60)
    assert GREETING in done.stdout, done.stderr


def test_a_connection_may_take_as_long_as_its_timeout_before_the_agent_starts() -> None:
    def launcher(seconds: float) -> SshLauncher:
        return SshLauncher(SshOptions.model_validate({"hosts": ["a"], "connect_timeout": seconds}))

    assert launcher(300.0).ready_seconds > 300.0
    assert launcher(300.0).ready_seconds - launcher(15.0).ready_seconds == 285.0


def test_a_client_that_is_still_connecting_is_ended_at_once() -> None:
    channel = SshChannel("a", ["sleep", "60"])
    began = time.monotonic()
    channel.close()
    assert time.monotonic() - began < 4


def test_ctrl_c_does_not_wait_for_hosts_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = SshLauncher(SshOptions.model_validate({"hosts": ["a", "b"]}))
    channels: list[SshChannel] = []

    def open_channel(host: str, session: str) -> SshChannel:
        channels.append(SshChannel(host, ["sleep", "60"]))
        return channels[-1]

    monkeypatch.setattr(launcher, "open_channel", open_channel)
    # Tests that were started in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            launcher.connect(["a", "b"])
    finally:
        signal.signal(signal.SIGINT, before)
    launcher.close()
    assert time.monotonic() - began < 15
    assert len(channels) == 2
    assert all(channel._popen.poll() is not None for channel in channels)


def test_the_next_command_removes_the_sockets_of_commands_that_are_gone() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    own = control_folder()
    made = [own.with_name(f"velodrome-ssh-{pid}-test") for pid in (gone.pid, os.getppid(), os.getpid())]
    for folder in made:
        folder.mkdir()
        (folder / "socket").touch()
    os.utime(made[1], (0, 0))  # of a command whose number another process has now
    try:
        again = control_folder()
        assert [folder.exists() for folder in made] == [False, False, True]
        assert own.exists()
    finally:
        for folder in (*made, own, again):
            shutil.rmtree(folder, ignore_errors=True)

"""A script in the roles of parameter servers and workers: who ends whom, and who is blamed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ARGUMENTS = "--job_name={role} --task_index={index} --ps_hosts={ps_hosts} --worker_hosts={worker_hosts}"
#: A server adds what workers send it, as a parameter server does, and never returns.
SCRIPT = """
import argparse, json, os, socket, sys, time
import velodrome

parser = argparse.ArgumentParser()
for name in ("job_name", "ps_hosts", "worker_hosts", "fault"):
    parser.add_argument(f"--{name}", default="")
parser.add_argument("--task_index", type=int)
options = parser.parse_args()
print(json.dumps({"tf": json.loads(os.environ["TF_CONFIG"]), "world": os.environ.get("WORLD_SIZE"),
                  "hosts": [options.ps_hosts, options.worker_hosts]}), flush=True)


def address(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


if options.job_name == "ps":
    listener = socket.create_server(address(options.ps_hosts.split(",")[options.task_index]))
    total = 0
    while True:
        worker, _ = listener.accept()
        total += int(worker.recv(100))
        if options.fault == "server":
            raise ValueError("the server's own mistake")
        if options.fault == "exit":
            sys.exit("the server gives up")
        worker.sendall(str(total).encode())
        worker.close()

for server in options.ps_hosts.split(","):
    deadline = time.monotonic() + 60
    velodrome.log(step=0)
    for step in range(10):
        while True:
            try:
                connection = socket.create_connection(address(server))
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        connection.sendall(b"1")
        answer = connection.recv(100)
        if options.fault in ("server", "exit"):
            time.sleep(600)
        if options.fault == "worker" and options.task_index == 1:
            raise ValueError("the worker's own mistake")
        velodrome.log(step=step + 1, examples=1, loss=1.0)
velodrome.log(split="test", accuracy=1.0)
"""


def words(scene: Scene, folder: Path, fault: str = "", *, servers: int = 1) -> list[str]:
    script = folder / "served.py"
    script.write_text(SCRIPT)
    return ["train", "--script", str(script), "--script-args", f"{ARGUMENTS} --fault={fault}", "--engine", "torch",
            "--workers", "2", "--servers", str(servers), "--runs", str(scene.runs), "--name", scene.name]


def test_servers_that_never_return_end_with_the_last_worker_and_every_process_knows_its_task(
    velodrome, scene: Scene, tmp_path: Path, no_strays: None
) -> None:
    done = velodrome(*words(scene, tmp_path, servers=2))
    assert done.code == 0, done.text
    result = scene.result()
    assert (result["status"], result["servers"], result["steps"]) == ("finished", 2, 20)
    assert result["test"]["accuracy"] == 1.0
    assert result["seconds"]["train"] is not None
    told = {name: json.loads((scene.path / "logs" / f"{name}.log").read_text().splitlines()[0])
            for name in ("worker-0", "worker-1", "server-0", "server-1")}
    cluster = told["worker-0"]["tf"]["cluster"]
    assert {role: len(hosts) for role, hosts in cluster.items()} == {"worker": 2, "ps": 2}
    assert all(each["tf"]["cluster"] == cluster for each in told.values())
    assert all(each["hosts"] == [",".join(cluster["ps"]), ",".join(cluster["worker"])] for each in told.values())
    assert [each["tf"]["task"] for each in told.values()] == [
        {"type": "worker", "index": 0}, {"type": "worker", "index": 1},
        {"type": "ps", "index": 0}, {"type": "ps", "index": 1}]
    assert [each["world"] for each in told.values()] == ["2", "2", None, None], "servers are no ranks of torchrun"


@pytest.mark.parametrize(("fault", "sentence"), [
    ("server", "server 0 on 127.0.0.1: ValueError: the server's own mistake"),
    ("exit", "server 0 on 127.0.0.1: {script} ended with exit code 1: the server gives up"),
    ("worker", "worker 1 on 127.0.0.1: ValueError: the worker's own mistake"),
])
def test_whoever_crashes_is_the_cause(
    velodrome, scene: Scene, tmp_path: Path, no_strays: None, fault: str, sentence: str
) -> None:
    done = velodrome(*words(scene, tmp_path, fault))
    assert done.code == 1, done.text
    assert f"velodrome: {sentence.format(script=tmp_path / 'served.py')}" in done.err
    assert scene.result()["error"]["cause"] == "user"


def test_a_misspelled_placeholder_is_refused_before_anything_starts(velodrome, scene: Scene, tmp_path: Path) -> None:
    refused = velodrome(*(word.replace("{ps_hosts}", "{ps_host}") for word in words(scene, tmp_path)))
    assert refused.code == 2, refused.text
    assert "there is no placeholder '{ps_host}': did you mean 'ps_hosts'?" in refused.err
    assert not scene.path.exists()

"""A plan tells every process where it and the others are, and a person what to type."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from velodrome.clusters.local import launcher as local
from velodrome.clusters.local.launcher import free_port
from velodrome.clusters.plan import Placement, command, environment, make_plan, manual_command
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Job, make_job
from velodrome.job.resolve import resolve, roles_of

pytestmark = pytest.mark.unit

HOSTS = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def job(strategy: str, workers: int, **fields: Any) -> Job:
    engine = fields.pop("engine", "tensorflow" if "-" in strategy or strategy == "mirrored" else "torch")
    return resolve(Job(engine=engine, strategy=strategy, workers=workers, **fields))


def test_roles_go_over_hosts_in_turns_and_share_cores_where_they_meet() -> None:
    made = make_plan("a", job("ddp", 4), HOSTS)
    assert [process.host for process in made.processes] == [*HOSTS, HOSTS[0]]
    assert [(process.slot, process.slots) for process in made.processes] == [(0, 2), (0, 1), (0, 1), (1, 2)]


def test_a_parameter_server_plan_has_every_role_in_every_tf_config() -> None:
    made = make_plan("a", job("parameter-server", 2, servers=2), HOSTS[:2])
    assert [process.name for process in made.processes] == ["server 0", "server 1", "worker 0", "worker 1", "chief 0"]
    assert (made.chief.role, made.chief.rank) == ("chief", 0)
    for process in made.processes:
        config = json.loads(process.environment["TF_CONFIG"])
        assert {task: len(addresses) for task, addresses in config["cluster"].items()} == {
            "ps": 2, "worker": 2, "chief": 1
        }
        assert config["task"]["index"] == process.rank


def test_an_ipv6_address_stands_in_brackets_before_a_port() -> None:
    plan = make_plan("run", job(engine="tensorflow", strategy="multi-worker-mirrored", workers=2), ["fd00::1", "h"])
    addresses = json.loads(plan.processes[0].environment["TF_CONFIG"])["cluster"]["worker"]
    assert addresses == ["[fd00::1]:29400", "h:29401"]


@pytest.mark.parametrize("fields", [
    {"engine": "mxnet", "strategy": "kvstore"}, {"engine": "jax", "strategy": "data-parallel"},
    {"engine": "horovod", "strategy": "allreduce"},
])
def test_an_engine_that_knows_ipv4_only_is_refused_at_other_addresses(fields: dict[str, str]) -> None:
    with pytest.raises(BadRequest, match=f"engine {fields['engine']}.* by IPv4 only, and fd00::1 is an IPv6 address"):
        make_plan("run", job(workers=2, **fields), ["10.0.0.1", "fd00::1"])
    assert make_plan("run", job(workers=2, **fields), ["10.0.0.1", "h"])
    assert make_plan("run", job(engine=fields["engine"], strategy="single", workers=1), ["fd00::1"])


def test_devices_of_one_process_are_one_process() -> None:
    assert roles_of(job("mirrored", 3)) == [("worker", 0)]


def test_no_two_processes_get_the_same_port() -> None:
    numbers = iter([5, 5, 5, 6, 6, 7, 8])
    made = make_plan("a", job("ddp", 3), port=lambda host: next(numbers))
    assert [process.member.port for process in made.processes] == [5, 6, 7]


def test_a_free_port_is_free_and_none_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", free_port()))
        trial.listen()
        taken = trial.getsockname()[1]
        monkeypatch.setattr(local, "PORTS", range(taken, taken + 1))
        monkeypatch.setattr(local.random.SystemRandom, "sample", lambda self, values, number: list(values))
        with pytest.raises(VelodromeError, match="no free port"):
            free_port()


def test_a_process_is_told_its_role_and_rank_where_people_and_user_code_look() -> None:
    made = make_plan("a", job("ddp", 2))
    words = command("python", made, made.processes[1], Path("runs/a"), resume=True)
    assert " ".join(words).endswith(
        "--run a --role worker --rank 1 --folder runs/a --slot 1/2 --resume --lifeline --supervised"
    )
    told = environment(made, made.processes[1])
    assert (told["VELODROME_ROLE"], told["VELODROME_RANK"]) == ("worker", "1")
    assert Job.model_validate_json(told["VELODROME_JOB"]) == made.job


def test_a_line_for_a_shell_says_the_same_words_whatever_is_in_them() -> None:
    made = make_plan("a", job("ddp", 2, model="m:build", model_args={"text": "it's \"odd\" $HOME"}), HOSTS[:2])
    words = shlex.split(manual_command(made, made.processes[1], Path("my runs"), "python3"))
    assert (words[0], words[1]) == (f"VELODROME_SECRET={made.secret}", "env"), "no list of processes shows the secret"
    settings = dict(word.split("=", 1) for word in [words[0], *words[2 : words.index("python3")]])
    assert settings == environment(made, made.processes[1])
    assert words[words.index("--folder") + 1] == "my runs/a"
    assert words[words.index("python3") :][1:3] == ["-m", "velodrome.run.manual"]
    assert [member["host"] for member in json.loads(settings["VELODROME_WORLD"])] == HOSTS[:2]


def test_every_plan_has_a_secret_of_its_own_that_all_its_processes_get_and_nobody_stores() -> None:
    one, another = make_plan("a", job("ddp", 2)), make_plan("a", job("ddp", 2))
    assert one.secret != another.secret
    assert len(one.secret) >= 32
    assert {environment(one, process)["VELODROME_SECRET"] for process in one.processes} == {one.secret}
    assert one.secret not in json.dumps(one.as_json())
    assert one.secret not in repr(one)
    assert not [word for word in command("python", one, one.processes[0], Path("runs/a")) if one.secret in word]


def test_a_plan_is_stored_as_json() -> None:
    stored = json.loads(json.dumps(make_plan("a", job("ddp", 2)).as_json()))
    assert [process["member"]["rank"] for process in stored["processes"]] == [0, 1]


def test_servers_of_mxnet_are_beside_its_workers_unless_the_user_says_otherwise() -> None:
    """As its own launcher has them; TensorFlow's have hosts of their own."""
    hosts = ["a", "b", "c", "d", "e"]

    def places(engine: str, strategy: str, **chosen: Any) -> dict[str, list[str]]:
        job = resolve(make_job({"engine": engine, "strategy": strategy, "workers": 2, "servers": 2}))
        plan = make_plan("run", job, hosts, placement=Placement("spread", **chosen))
        return {role: [each.host for each in plan.processes if each.role == role] for role in ("worker", "server")}

    mxnet = places("mxnet", "kvstore")
    assert mxnet["server"] == mxnet["worker"]
    spread = places("mxnet", "kvstore", servers="spread")
    assert not {*spread["server"]} & {*spread["worker"]}
    tensorflow = places("tensorflow", "parameter-server")
    assert not {*tensorflow["server"]} & {*tensorflow["worker"]}

"""What is said about a cluster before there are pods, how many fit, and how a kubeconfig is read."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from velodrome.clusters.k8s import K8sOptions
from velodrome.clusters.k8s.checks import amount, clean, examine, room
from velodrome.clusters.k8s.kubeconfig import find_access
from velodrome.errors import BadRequest, Unavailable

pytestmark = pytest.mark.integration


class FakeApi:
    """Answers with the objects that it was made with."""

    namespace = "team"

    def __init__(self, pods: Any = (), **objects: list[dict[str, Any]]) -> None:
        self.objects, self.all_pods, self.deleted, self.refused = objects, list(pods), [], set()

    def list(self, kind: str, selector: str = "", **query: object) -> list[dict[str, Any]]:
        return self.objects.get(kind, [])

    def request(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        return {"gitVersion": "v1.37.0"} if path == "version" else {"items": self.all_pods}

    def may(self, verb: str, group: str, resource: str, *, sub: str = "") -> bool:
        return (verb, resource) not in self.refused

    def delete(self, kind: str, name: str, *, grace: int | None = None) -> None:
        self.deleted.append(f"{kind} {name}")


def options(**fields: Any) -> K8sOptions:
    return K8sOptions.model_validate({"image": "i", **fields})


def quota(hard: dict[str, str], used: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "small"}, "status": {"hard": hard, "used": used}}


def node(name: str, cpu: str, **more: Any) -> dict[str, Any]:
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": name, "labels": more.pop("labels", {})}, "spec": more,
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}, "conditions": ready}}


def taken(name: str, cpu: str, phase: str = "Running") -> dict[str, Any]:
    return {"spec": {"nodeName": name, "containers": [{"resources": {"requests": {"cpu": cpu}}}]},
            "status": {"phase": phase}}


@pytest.mark.parametrize(("text", "number"), [
    ("500m", 0.5), ("4", 4.0), ("2Gi", 2.0 * 2**30), ("1k", 1e3), ("1.5", 1.5), ("3Mi", 3.0 * 2**20), ("1e3", 1e3)
])
def test_quantities(text: str, number: float) -> None:
    assert amount(text) == pytest.approx(number)


def test_room_is_what_quotas_and_nodes_leave() -> None:
    nodes = [node("a", "4"), node("b", "4"), node("c", "64", unschedulable=True),
             node("d", "64", taints=[{"key": "gpu", "effect": "NoSchedule"}])]
    api: Any = FakeApi([taken("a", "3"), taken("b", "1"), taken("b", "2", "Succeeded")], Node=nodes)
    assert room(api, options(cpu="1")) == 1 + 3
    assert room(api, options(cpu="1", tolerations=[{"key": "gpu", "operator": "Exists"}])) == 1 + 3 + 64
    assert room(api, options(cpu="1", node_selector={"x": "y"})) == 0
    api.objects["ResourceQuota"] = [quota({"pods": "10", "requests.cpu": "5"}, {"pods": "2", "requests.cpu": "3"})]
    assert room(api, options(cpu="1")) == 2
    assert room(FakeApi(), options()) == 0, "nothing is known"  # type: ignore[arg-type]


def test_doctor_says_what_the_quota_leaves_and_what_may_not_be_done() -> None:
    api: Any = FakeApi(ResourceQuota=[quota({"pods": "3"}, {"pods": "2"})])
    sentences = [finding.sentence for finding in examine(api, options(), 2) if finding.level == "error"]
    assert sentences == ["the quota 'small' of namespace 'team' leaves no room for 2 pods: of pods 3, 2 is in use; "
                         "wait, or ask for less"]
    assert not [finding for finding in examine(api, options(), 1) if finding.level != "ok"]
    api.objects = {"ResourceQuota": [quota({"requests.memory": "4Gi"}, {})]}
    (finding,) = (finding for finding in examine(api, options(), 1) if finding.level == "error")
    assert finding.sentence == ("the quota 'small' of namespace 'team' counts requests.memory, and the pods say "
                                "nothing about it; set memory of the cluster")
    api.objects, api.refused = {}, {("delete", "jobs"), ("list", "events")}
    found = {finding.level: finding.sentence for finding in examine(api, options(), 1)}
    assert found["error"] == ("you may not delete jobs in namespace 'team'; `velodrome clusters rbac k8s` prints the "
                              "Role that allows it")
    assert "you may not list events in namespace 'team': messages say less" in found["warning"]


def test_clean_leaves_runs_alone_whose_pods_still_run() -> None:
    def item(name: str, run: str, phase: str | None = None) -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": {"velodrome/run": run}}, "status": {"phase": phase}}

    api: Any = FakeApi(Job=[item("over-w", "over"), item("alive-w", "alive")],
                       Pod=[item("over-p", "over", "Succeeded"), item("alive-p", "alive", "Running")])
    assert clean(api) == ["over in namespace team"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def kubeconfig(user: dict[str, Any], server: str = "http://127.0.0.1:1", **cluster: Any) -> dict[str, Any]:
    return {"current-context": "here", "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}]}


def test_tokens_passwords_and_files(config: Path, tmp_path: Path) -> None:
    config.write_text(yaml.safe_dump(kubeconfig({"token": "t"})))
    access = find_access(None)
    assert (access.server, access.namespace, access.tls) == ("http://127.0.0.1:1", "team", None)
    assert access.credentials.headers() == {"authorization": "Bearer t"}
    (tmp_path / "token").write_text("from-file\n")
    config.write_text(yaml.safe_dump(kubeconfig({"tokenFile": "token"})))
    assert find_access(None).credentials.headers() == {"authorization": "Bearer from-file"}
    config.write_text(yaml.safe_dump(kubeconfig({"username": "a", "password": "b"})))
    assert find_access(None).credentials.headers() == {"authorization": "Basic YTpi"}


_LOGIN = """#!{python}
import json, os, pathlib
asked, count = json.loads(os.environ["KUBERNETES_EXEC_INFO"]), pathlib.Path("{count}")
seen = int(count.read_text()) if count.exists() else 0
count.write_text(str(seen + 1))
status = dict(token=os.environ["WHO"] + str(seen), expirationTimestamp="2001-01-01T00:00:00Z")
print(json.dumps(dict(kind=asked["kind"], status=status)))
"""


def test_a_plugin_of_a_cloud_is_asked_again_when_its_token_expires(config: Path, tmp_path: Path) -> None:
    program = tmp_path / "login"
    program.write_text(_LOGIN.format(python=sys.executable, count=tmp_path / "count"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login",
              "env": [{"name": "WHO", "value": "me"}]}
    config.write_text(yaml.safe_dump(kubeconfig({"exec": plugin})))
    credentials = find_access(None).credentials
    assert credentials.headers() == {"authorization": "Bearer me1"}
    assert credentials.headers() == {"authorization": "Bearer me2"}
    program.write_text("#!/bin/sh\necho 'token is stale' >&2; exit 1\n")
    with pytest.raises(Unavailable, match="login' gave no credentials: token is stale; log in again"):
        credentials.headers()


def test_mistakes_are_sentences(config: Path) -> None:
    with pytest.raises(Unavailable, match=r"there is no kubeconfig at .*; set KUBECONFIG"):
        find_access(None)
    config.write_text(yaml.safe_dump(kubeconfig({})))
    with pytest.raises(BadRequest, match="has no context 'hree'; did you mean 'here'"):
        find_access("hree")
    config.write_text("[")
    with pytest.raises(BadRequest, match="cannot be read"):
        find_access(None)
    config.write_text(yaml.safe_dump(kubeconfig({}, "https://127.0.0.1:1", **{"certificate-authority-data": "%"})))
    with pytest.raises(BadRequest, match="certificate-authority-data is no base64"):
        find_access(None)
    config.write_text(yaml.safe_dump(kubeconfig({"exec": {"command": "no-such-cloud", "installHint": "install it"}})))
    with pytest.raises(Unavailable, match="'no-such-cloud' cannot be started: No such file or directory; install it"):
        find_access(None)
    config.write_text(json.dumps({**kubeconfig({}), "current-context": ""}))
    with pytest.raises(BadRequest, match="has no current context; choose one: context=NAME, of here"):
        find_access(None)

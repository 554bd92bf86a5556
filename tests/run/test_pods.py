"""Manifests for people who start pods themselves: Kubernetes accepts them, and each pod starts its own process."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from velodrome.api.train import plan
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.run import manual
from velodrome.run.pods import object_name

#: The newest version of which there is a schema, and two before it.
VERSIONS = ["1.37", "1.36", "1.35"]
FORMATS = ["k8s", "jobset"]
JOBS: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "torch", "strategy": "ddp", "workers": 2},
    "fsdp": {"engine": "torch", "strategy": "fsdp", "workers": 2},
    "torch-parameter-server": {"engine": "torch", "strategy": "parameter-server", "workers": 2, "servers": 2},
    "single": {"engine": "torch", "strategy": "single"},
    "multi-worker-mirrored": {"engine": "tensorflow", "strategy": "multi-worker-mirrored", "workers": 3},
    "parameter-server": {"engine": "tensorflow", "strategy": "parameter-server", "workers": 2, "servers": 1},
    "kvstore": {"engine": "mxnet", "strategy": "kvstore", "workers": 2, "servers": 1},
}
CLUSTER = {
    "launcher": "k8s", "image": "registry/all:1", "namespace": "team", "gpus": 2, "cpu": 4, "memory": "16Gi",
    "volumes": {"/results": "claim:results", "/data": "claim:data:ro"}, "env_from": ["s3-keys"], "keep": 60,
    "environment": {"TOKEN_OF_MINE": "hidden-7291", "HOME": "/results/home"},
}
ON = "k8s:image=registry/torch:1"


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kube` in clusters.yaml has every option."""
    file = tmp_path / "clusters.yaml"
    file.write_text(yaml.safe_dump({"kube": CLUSTER}))
    monkeypatch.setenv("VELODROME_CLUSTERS", str(file))


def written(form: str, on: str = ON, job: str = "ddp", **fields: Any) -> list[dict[str, Any]]:
    """The manifests of a job."""
    planned = {"name": "x", **{name: fields.pop(name) for name in ("name", "runs", "port") if name in fields}}
    text = plan(Job.model_validate(JOBS[job] | fields), [], format=form, on=on, **planned)["file"]
    return list(yaml.safe_load_all(text))


def kind(made: list[dict[str, Any]], wanted: str) -> list[dict[str, Any]]:
    return [each for each in made if each["kind"] == wanted]


def pods(made: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What each pod has, by its host name."""
    specs = [job["spec"]["template"]["spec"] for job in jobs(made)]
    return {spec["hostname"]: spec for spec in specs}


def jobs(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The Jobs, also those that a JobSet makes."""
    plain = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    sets = [{**plain, **job["template"]} for each in kind(made, "JobSet") for job in each["spec"]["replicatedJobs"]]
    return [*kind(made, "Job"), *sets]


def environment(spec: dict[str, Any]) -> dict[str, str]:
    """As the process sees it: Kubernetes makes one dollar sign of two."""
    return {each["name"]: each["value"].replace("$$", "$") for each in spec["containers"][0]["env"]}


@pytest.mark.unit
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("job", JOBS)
def test_every_version_accepts_the_manifests_of_every_strategy(job: str, form: str) -> None:
    for made in (written(form, job=job), written(form, "kube", job)):
        standard = [each for each in made if each["kind"] != "JobSet"]
        assert {each["kind"] for each in standard} >= {"Secret", "Service", "NetworkPolicy"}
        assert len(kind(made, "JobSet")) == (form == "jobset")
        for manifest in [*standard, *jobs(made)]:
            for version in VERSIONS:
                kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.unit
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("job", JOBS)
def test_each_pod_starts_its_own_process_and_all_know_one_another_by_the_service(job: str, form: str) -> None:
    made = written(form, job=job)
    (service,) = kind(made, "Service")
    assert service["spec"]["clusterIP"] == "None"
    name = service["metadata"]["name"]
    found = pods(made)
    for pod, spec in found.items():
        assert spec["subdomain"] == name
        given = manual._parse(spec["containers"][0]["command"][4:])
        assert f"{given.role}-{given.rank}" == pod
        assert given.names_within == 600
        variables = environment(spec)
        world = json.loads(variables["VELODROME_WORLD"])
        assert {one["host"] for one in world} == {f"{other}.{name}" for other in found}
        assert (variables["VELODROME_ROLE"], variables["VELODROME_RANK"]) == (given.role, str(given.rank))
        assert json.loads(variables["VELODROME_JOB"])["start_timeout"] == 600, "an image may be slow to come"
    for selected in jobs(made):
        assert service["spec"]["selector"].items() <= selected["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.unit
def test_pods_are_safe_and_have_the_options_of_the_cluster() -> None:
    for spec in pods(written("k8s", "kube", runs="/results/runs")).values():
        (container,) = spec["containers"]
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"},
                                           "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                "capabilities": {"drop": ["ALL"]}}
        assert spec["automountServiceAccountToken"] is False
        amounts = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"}
        assert container["resources"] == {"requests": amounts, "limits": amounts}
        assert container["image"] == "registry/all:1"
        assert "/results/runs/x" in container["command"]
        assert environment(spec)["HOME"] == "/results/home"
    made = written("k8s", "kube")
    assert {each["metadata"]["namespace"] for each in made} == {"team"}
    assert {job["spec"]["ttlSecondsAfterFinished"] for job in kind(made, "Job")} == {60}
    assert {job["spec"]["ttlSecondsAfterFinished"] for job in kind(written("k8s"), "Job")} == {86400}


@pytest.mark.unit
@pytest.mark.parametrize("form", FORMATS)
def test_only_the_secret_has_what_is_secret_and_it_is_there_before_the_pods(form: str) -> None:
    made = written(form, "kube")
    (secret,) = kind(made, "Secret")
    assert made[0] is secret
    own = secret["stringData"]["VELODROME_SECRET"]
    assert secret["stringData"]["TOKEN_OF_MINE"] == "hidden-7291"
    assert own not in json.dumps(made[1:])
    assert "hidden-7291" not in json.dumps(made[1:])
    for spec in pods(made).values():
        assert spec["containers"][0]["envFrom"] == [
            {"secretRef": {"name": name}} for name in ("s3-keys", secret["metadata"]["name"])]


@pytest.mark.integration
def test_the_users_code_is_where_the_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets").mkdir()
    Path("nets/__init__.py").write_text("from .deep import build\n")
    Path("nets/deep.py").write_text("def build(input_shape, classes, text): ...\n")
    made = written("k8s", model="nets:build", model_args={"text": "$(HOME) $$ it's"})
    (config,) = kind(made, "ConfigMap")
    kubernetes_validate.validate(config, VERSIONS[0], strict=True)
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in config["data"])
    for spec in pods(made).values():
        (volume,) = (volume["configMap"] for volume in spec["volumes"] if "configMap" in volume)
        assert volume["name"] == config["metadata"]["name"]
        there = {item["path"]: config["data"][item["key"]] for item in volume["items"]}
        assert there == {name: Path(name).read_text() for name in ("nets/__init__.py", "nets/deep.py")}
        (container,) = spec["containers"]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert container["workingDir"] == mounted["files"]
        assert json.loads(environment(spec)["VELODROME_JOB"])["model_args"] == {"text": "$(HOME) $$ it's"}
        assert "$(" not in json.dumps(container["env"]).replace("$$", "")
    Path("nets/deep.py").write_text("#" * 1_000_000)
    with pytest.raises(BadRequest, match=r"your code has .*, more than a ConfigMap takes: put it into the image"):
        written("k8s", model="nets:build")
    Path("nets/deep.py").write_bytes(b"\xff")
    with pytest.raises(BadRequest, match=r"'nets/deep\.py' is no text"):
        written("k8s", model="nets:build")


@pytest.mark.unit
def test_a_file_says_where_its_results_go() -> None:
    def head(**fields: Any) -> str:
        text: str = plan(Job.model_validate(JOBS["ddp"]), [], format="k8s", on="kube", name="x", **fields)["file"]
        return text.partition("---\n")[0]

    assert "RESULTS ARE NOT KEPT: /velodrome/runs/x is in an emptyDir" in head()
    assert "The result is in /results/runs/x, on claim 'results'" in head(runs="/results/runs")


@pytest.mark.unit
@pytest.mark.parametrize(("form", "fields", "sentence"), [
    ("k8s", {}, "--on k8s: no image for engine 'torch': write --on k8s:image=NAME"),
    ("k8s", {"on": "local"}, "--on 'local': --format k8s needs a Kubernetes cluster: write --on k8s:image=NAME"),
    ("slurm", {"on": ON}, "--on 'k8s:image=registry/torch:1': only --format k8s and --format jobset need it"),
    (None, {"on": ON}, "only --format k8s and --format jobset need it"),
    ("k8s", {"on": ON, "place": {"worker": "a"}}, "--place: each process has a pod of its own"),
    ("k8s", {"on": ON, "runs": "/results"}, "--runs '/results': pods can write there only if it is in a volume"),
    ("jobset", {"on": "kube", "runs": "/data/runs"}, "--runs '/data/runs': pods can write there only if"),
    ("jobset", {"on": ON, "port": 0}, "--port 0: choose one from 1 to 65000"),
])
def test_mistakes_are_sentences(form: str | None, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(sentence)):
        plan(Job.model_validate(JOBS["ddp"]), ["a"], format=form, **fields)


@pytest.mark.unit
def test_names_of_objects_are_short_and_those_of_two_runs_differ() -> None:
    runs = ["x", "X", "x.", "x-1", "x_1", "a" * 120, "a" * 119, "torch-ddp-2w-digits-lenet5-32b-261119-234530"]
    names = [object_name(run) for run in runs]
    assert len({*names}) == len(runs)
    assert names[0] == "velodrome-x"
    for name in names:
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,40}[a-z0-9])?", name)
        assert object_name(name) == object_name(name)


@pytest.mark.unit
def test_a_process_waits_for_the_names_of_the_others_and_says_which_do_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = environment(pods(written("k8s"))["worker-0"])
    for name, value in variables.items():
        if name.startswith("VELODROME_"):
            monkeypatch.setenv(name, value)

    def unknown(*_: Any, **__: Any) -> list[str]:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    began = time.monotonic()
    code = manual.main(["--run", "x", "--role", "worker", "--rank", "0", "--folder", str(tmp_path / "x"), "--slot",
                        "0/1", "--names-within", "0.5"])
    assert code == 1
    assert time.monotonic() - began < 30
    assert "no address of worker 0 (worker-0.velodrome-x), worker 1 (worker-1.velodrome-x) is known after 0.5 s" in (
        capsys.readouterr().err)


@pytest.mark.unit
def test_names_that_become_known_one_after_the_other_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(pods(written("k8s"))["worker-0"]).items():
        if name.startswith("VELODROME_"):
            monkeypatch.setenv(name, value)
    asked: list[str] = []

    def known(host: str, *_: Any, **__: Any) -> list[str]:
        asked.append(host)
        if asked.count(host) <= (1 if host.startswith("worker-1") else 0):
            raise socket.gaierror
        return [host]

    monkeypatch.setattr(socket, "getaddrinfo", known)
    part = manual._part(manual._parse(["--run", "x", "--role", "worker", "--rank", "0", "--folder", str(tmp_path)]))
    manual.wait_for_names(part, 20.0)
    assert asked == [f"worker-{rank}.velodrome-x" for rank in (0, 1, 1)]

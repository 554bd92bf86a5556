"""What a run is in Kubernetes: manifests that every version accepts, safe by default, and owned by one object."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest

from velodrome.clusters import target_of
from velodrome.clusters.definitions import validated
from velodrome.clusters.k8s import K8sOptions
from velodrome.clusters.k8s.launcher import run_of
from velodrome.clusters.k8s.manifests import Pod, Run, manifests, owned_by, role
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

pytestmark = pytest.mark.unit

#: The newest, two before it, and the oldest of which there is a schema; the tests' own cluster is older.
VERSIONS = ["1.37", "1.36", "1.35", "1.25"]
RUN = Run("velodrome-0123456789", [Pod("chief-0", "chief", ["python3"]), Pod("server-0", "server", ["python3"])], "i")
FULL = {
    "image": "registry/torch:1", "namespace": "team", "pull_secret": "key", "cpu": "4", "memory": "16Gi", "gpus": 2,
    "resources": {"rdma/hca": "1"}, "node_selector": {"pool": "gpu"}, "service_account": "trainer",
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}], "env_from": ["s3-keys"],
    "volumes": {"/data": "claim:data:ro", "/cache": "host:/var/cache/velodrome", "/key": "secret:key"},
    "pod": {"priorityClassName": "low"}, "annotations": {"team": "x"},
}


def options(**fields: Any) -> K8sOptions:
    return K8sOptions.model_validate({"image": "i", **fields})


def pod_specs(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [manifest["spec"]["template"]["spec"] for manifest in made if manifest["kind"] == "Job"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fields", [{}, FULL], ids=["defaults", "all"])
def test_every_version_accepts_the_manifests(version: str, fields: dict[str, Any]) -> None:
    run = Run(RUN.name, RUN.pods, "i", {"code.tar": "x"}, annotations={"velodrome/strategy": "torch/ddp"})
    made = manifests(run, options(**fields))
    assert [manifest["kind"] for manifest in made] == ["Job", "Job", "Service", "ConfigMap", "NetworkPolicy"]
    for manifest in [*made, *role("team", options(**fields))]:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schemas_notice_a_field_that_does_not_exist() -> None:
    job = manifests(RUN, options())[0]
    job["spec"]["backofLimit"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


def test_pods_have_the_names_of_their_processes_below_the_service_of_the_run() -> None:
    made = manifests(RUN, options())
    assert [(spec["hostname"], spec["subdomain"]) for spec in pod_specs(made)] == [
        ("chief-0", RUN.name), ("server-0", RUN.name)]
    service = next(manifest for manifest in made if manifest["kind"] == "Service")
    assert service["metadata"]["name"] == RUN.name
    assert service["spec"]["clusterIP"] == "None"
    labels = made[0]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert RUN.address("server-0") == f"server-0.{RUN.name}"


def test_nothing_is_started_twice_or_for_ever_and_one_object_owns_the_others() -> None:
    first, *others = manifests(RUN, options(time=30, keep=60))
    assert first["spec"]["activeDeadlineSeconds"] == 1800
    assert first["spec"]["ttlSecondsAfterFinished"] == 60
    assert first["spec"]["backoffLimit"] == 0
    assert pod_specs([first])[0]["restartPolicy"] == "Never"
    owner = {**first, "metadata": {**first["metadata"], "uid": "u"}}
    for manifest in others:
        (reference,) = owned_by(manifest, owner)["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["name"], reference["uid"]) == ("Job", f"{RUN.name}-chief-0", "u")
        assert "ownerReferences" not in manifest["metadata"]


def restricted(spec: dict[str, Any]) -> list[str]:
    """What the restricted Pod Security Standard, as Kubernetes documents it, does not allow in a pod."""
    wrong = []
    pod = spec.get("securityContext") or {}
    for kind in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(kind):
            wrong.append(kind)
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected",
               "secret"}
    for volume in spec["volumes"]:
        wrong += [kind for kind in volume if kind != "name" and kind not in allowed]
    for container in spec["containers"]:
        own = container.get("securityContext") or {}
        if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
            wrong.append("allowPrivilegeEscalation")
        if (own.get("capabilities") or {}).get("drop") != ["ALL"] or (own.get("capabilities") or {}).get("add"):
            wrong.append("capabilities")
        user = own.get("runAsUser", pod.get("runAsUser"))
        if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True or user == 0:
            wrong.append("runAsNonRoot")
        profile = own.get("seccompProfile", pod.get("seccompProfile")) or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            wrong.append("seccompProfile")
        wrong += ["hostPort" for port in container.get("ports") or [] if port.get("hostPort")]
    return wrong


def test_pods_pass_the_restricted_standard_unless_a_folder_of_the_node_is_asked_for() -> None:
    for spec in pod_specs(manifests(RUN, options())):
        assert restricted(spec) == []
        assert spec["automountServiceAccountToken"] is False
        assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    for spec in pod_specs(manifests(RUN, options(volumes={"/x": "host:/x"}))):
        assert restricted(spec) == ["hostPath"]


def test_only_the_pods_of_a_run_connect_to_them() -> None:
    (policy,) = (manifest for manifest in manifests(RUN, options()) if manifest["kind"] == "NetworkPolicy")
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": policy["spec"]["podSelector"]}]}]
    assert "velodrome/run" in policy["spec"]["podSelector"]["matchLabels"]
    assert not [each for each in manifests(RUN, options(network_policy=False)) if each["kind"] == "NetworkPolicy"]


def test_options_are_where_kubernetes_looks_for_them() -> None:
    first, _ = pod_specs(manifests(RUN, options(**FULL)))
    container = first["containers"][0]
    amounts = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2", "rdma/hca": "1"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}
    assert container["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    assert first["imagePullSecrets"] == [{"name": "key"}]
    assert first["nodeSelector"] == {"pool": "gpu"}
    assert first["tolerations"] == FULL["tolerations"]
    assert first["serviceAccountName"] == "trainer"
    assert first["priorityClassName"] == "low"
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/data"]["readOnly"] is True
    assert "readOnly" not in mounts["/cache"]
    volumes = {volume["name"]: volume for volume in first["volumes"]}
    assert volumes[mounts["/data"]["name"]]["persistentVolumeClaim"] == {"claimName": "data"}
    assert volumes[mounts["/cache"]["name"]]["hostPath"] == {"path": "/var/cache/velodrome"}
    assert volumes[mounts["/key"]["name"]]["secret"] == {"secretName": "key"}


def test_a_jobset_has_all_pods_of_the_run() -> None:
    jobset, *others = manifests(RUN, options(kind="jobset"))
    assert jobset["kind"] == "JobSet"
    assert [job["name"] for job in jobset["spec"]["replicatedJobs"]] == ["chief-0", "server-0"]
    assert jobset["spec"]["failurePolicy"] == {"maxRestarts": 0}
    assert [manifest["kind"] for manifest in others] == ["Service", "NetworkPolicy"]
    plain = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    for job in jobset["spec"]["replicatedJobs"]:
        kubernetes_validate.validate({**plain, **job["template"]}, VERSIONS[0], strict=True)


def test_each_process_of_a_job_has_a_pod_with_the_image_of_its_engine() -> None:
    job = resolve(Job(engine="tensorflow", strategy="parameter-server", workers=2, servers=1))
    run = run_of(job, options(images={"tensorflow": "tf:1"}), RUN.name)
    assert run.image == "tf:1"
    assert sorted(pod.name for pod in run.pods) == ["chief-0", "server-0", "worker-0", "worker-1"]
    with pytest.raises(BadRequest, match=r"no image for engine 'tensorflow': write --on k8s:image=NAME"):
        run_of(job, K8sOptions.model_validate({}), RUN.name)


def test_no_secret_of_a_run_is_in_its_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-7291")
    job = resolve(Job(engine="torch", strategy="ddp", workers=2))
    fields = options(environment={"AWS_SECRET_ACCESS_KEY": "hidden-7291"})
    assert "hidden-7291" not in json.dumps(manifests(run_of(job, fields, RUN.name), fields))


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"cpu": "four"}, "cpu 'four': write it as Kubernetes does, such as 500m, 4 or 16Gi"),
    ({"volumes": {"data": "claim:x"}}, "'data' is no absolute path in a pod"),
    ({"volumes": {"/velodrome/x": "claim:x"}}, "'/velodrome/x' is used already"),
    ({"volumes": {"/x": "nfs:x"}}, "'nfs:x' cannot be read: write claim:NAME, secret:NAME or host:FOLDER"),
    ({"shared_dir": "/x"}, "pods and this machine share no folder"),
    ({"namespace": "Team"}, "names in Kubernetes have only small letters"),
    ({"imgae": "x"}, "no field 'imgae': did you mean 'image'"),
])
def test_mistakes_in_options_are_sentences(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        validated(K8sOptions, fields, "cluster 'x'")


def test_options_behind_the_name_of_the_launcher() -> None:
    given = target_of("k8s:image=reg/torch:1,namespace=team,gpus=2,node_selector=pool=gpu,cpu=500m").options
    assert isinstance(given, K8sOptions)
    assert (given.image, given.namespace, given.gpus, given.cpu) == ("reg/torch:1", "team", 2, "500m")
    assert given.node_selector == {"pool": "gpu"}
    with pytest.raises(BadRequest, match="'imag=x' is none of context, namespace, image"):
        target_of("k8s:imag=x")

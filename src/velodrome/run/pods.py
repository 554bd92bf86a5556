"""A job as manifests of Kubernetes, for people who apply them without a controller: each pod starts its own process
with `velodrome.run.manual`, and all of them wait until they find one another by name.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from velodrome.catalog.registry import engine_of
from velodrome.clusters import Target
from velodrome.clusters.k8s import WORK, K8sOptions, volume_parts
from velodrome.clusters.k8s.manifests import RUN, Manifest, Pod, Run, manifests, user_variables
from velodrome.clusters.plan import Placement, Plan, arguments, consecutive_ports, environment, make_plan
from velodrome.clusters.remote.starting import code_of
from velodrome.data.fetch import MIRROR
from velodrome.errors import BadRequest, bytes_text
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of
from velodrome.run.manual import yaml_text
from velodrome.variables import SECRET

#: By format: what the pods are made of.
KINDS: Mapping[str, Literal["job", "jobset"]] = {"k8s": "job", "jobset": "jobset"}
#: Names of Jobs and JobSets begin with that of the run, and those of their pods may have 63 characters.
_LONGEST_NAME = 42
#: Seconds for which logs stay when nobody said so: without a controller, nobody has read them.
_KEEP_SECONDS = 86400
#: Bytes of code, so that they and what describes them fit into a ConfigMap of 1 MiB.
_MOST_CODE = 900_000


def object_name(run: str) -> str:
    """The name of a run's objects: the same for the same run, and another one for every other run."""
    name = "velodrome-" + re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    if name == f"velodrome-{run}" and len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9].rstrip('-')}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def pod_options(form: str, target: Target, *, asked: bool) -> K8sOptions:
    """The options of the pods; `asked` if the user named the cluster for them."""
    options = target.options
    if not isinstance(options, K8sOptions):
        if asked:
            raise BadRequest(f"--on {target.name!r}: --format {form} needs a Kubernetes cluster: write --on "
                             "k8s:image=NAME, or name one of clusters.yaml")
        options = K8sOptions.model_validate({})
    kept = {} if "keep" in options.model_fields_set else {"keep": _KEEP_SECONDS}
    return options.model_copy(update={"kind": KINDS[form], **kept})


def _plan(name: str, job: Job, run: str, port: int, options: K8sOptions) -> Plan:
    """Each process on a host of its own, the pod; they wait as long for processes as pods may take to run."""
    patient = job.model_copy(update={"start_timeout": max(job.start_timeout, options.start_timeout)})
    pods = {f"{role}:{rank}": f"{role}-{rank}" for role, rank in roles_of(job)}
    addresses = {pod: f"{pod}.{run}" for pod in pods.values()}
    return make_plan(name, patient, [*addresses], consecutive_ports(port), placement=Placement(pins=pods),
                     addresses=addresses)


def _folder(runs: Path, options: K8sOptions) -> tuple[Path, str | None]:
    """The folder of runs in a pod, and the volume claim in which it lies, if it does."""
    folder = Path(WORK) / runs
    if folder.is_relative_to(WORK):
        return folder, None
    for path, source in options.volumes.items():
        kind, name, read_only = volume_parts(source)
        if folder.is_relative_to(path) and not read_only and kind != "secret":
            return folder, f"{kind} {name!r}"
    raise BadRequest(f"--runs {str(runs)!r}: pods can write there only if it is in a volume: name one in "
                     f"clusters.yaml, as volumes: {{{runs}: \"claim:NAME\"}}")


def _code(job: Job, options: K8sOptions) -> dict[str, str]:
    """The user's code, as text by its names."""
    code = code_of(job, options.code, options.code_limit)
    if code.size > _MOST_CODE:
        raise BadRequest(f"your code has {bytes_text(code.size)}, more than a ConfigMap takes: put it into the image, "
                         "on PYTHONPATH, or let `velodrome train --on k8s` send it")
    texts = {}
    for name, path in sorted(code.files.items()):
        try:
            texts[name] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise BadRequest(f"{name!r} is no text, and a manifest has only texts: put it into the image or on a "
                             "volume, or let `velodrome train --on k8s` send it") from None
    return texts


def _variables(plan: Plan, options: K8sOptions) -> dict[str, dict[str, str]]:
    """The environment of each pod, without what its Secret has."""
    common = {"HOME": WORK}
    mirror = options.mirror or os.environ.get(MIRROR, "")
    if MIRROR not in options.environment and (options.mirror or "://" in mirror):
        common[MIRROR] = mirror
    common |= {name: options.environment[name] for name in user_variables() if name in options.environment}
    return {
        process.file_name: common | {name: value for name, value in environment(plan, process).items()
                                     if name != SECRET}
        for process in plan.processes
    }


def _run(plan: Plan, name: str, options: K8sOptions, folder: Path, python: str) -> Run:
    job = plan.job
    run = Run(name, (), options.required_image(engine_of(job)), _code(job, options),
              annotations={"velodrome/name": plan.run, "velodrome/strategy": f"{job.engine}/{job.strategy}"})
    variables = _variables(plan, options)
    pods = []
    for process in plan.processes:
        command = [options.python or python, "-P", "-m", "velodrome.run.manual",
                   *arguments(plan, process, folder / plan.run), "--names-within", f"{options.start_timeout:g}"]
        pods.append(Pod(process.file_name, process.role, [_literal(word) for word in command],
                        {key: _literal(value) for key, value in variables[process.file_name].items()}))
    return replace(run, pods=pods)


def _literal(text: str) -> str:
    """A text in which Kubernetes replaces no `$(NAME)`."""
    return text.replace("$", "$$")


def _objects(run: Run, plan: Plan, options: K8sOptions) -> list[Manifest]:
    """What pods need before the pods, in the namespace of the cluster."""
    secret: Manifest = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": run.name, "labels": run.labels},
        "stringData": {**options.environment, SECRET: plan.secret},
    }
    with_secret = options.model_copy(update={"env_from": [*options.env_from, run.name]})
    made = manifests(run, with_secret)
    starting = [each for each in made if each["kind"] in ("Job", "JobSet")]
    objects = [secret, *(each for each in made if each not in starting), *starting]
    if options.namespace is None:
        return objects
    return [{**each, "metadata": {**each["metadata"], "namespace": options.namespace}} for each in objects]


def file_of(
    form: str, name: str, job: Job, target: Target, *, asked: bool, port: int, runs: Path, python: str
) -> str:
    """The manifests of a job, as YAML."""
    options = pod_options(form, target, asked=asked)
    objects_name = object_name(name)
    folder, volume = _folder(runs, options)
    plan = _plan(name, job, objects_name, port, options)
    run = _run(plan, objects_name, options, folder, python)
    head = "\n".join(_head(form, run, options, folder / name, volume))
    return f"{head}\n" + "".join(f"---\n{yaml_text(each)}" for each in _objects(run, plan, options))


def _head(form: str, run: Run, options: K8sOptions, folder: Path, volume: str | None) -> list[str]:
    logs = f"kubectl logs -f -l {RUN}={run.name} --prefix"
    lines = [f"# Start it with `kubectl apply -f FILE`; the image {run.image!r} must have velodrome and the engine."]
    if form == "jobset":
        lines.append("# The cluster must have the JobSet controller (https://jobset.sigs.k8s.io).")
    lines += [f"# Follow it with `{logs}`; remove everything with `kubectl delete -f FILE`.",
              f"# Kubernetes removes the pods and their logs {options.keep} s after they have ended."]
    if volume is None:
        lines += [f"# RESULTS ARE NOT KEPT: {folder} is in an emptyDir, which goes with its pod; the log has the",
                  "# accuracy. To keep them, name a volume claim under `volumes` in clusters.yaml, and a folder in it",
                  "# with --runs."]
    else:
        lines.append(f"# The result is in {folder}, on {volume}, which every pod must be able to write to.")
    return lines

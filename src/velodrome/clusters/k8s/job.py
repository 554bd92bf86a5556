"""The pods of a run as long as they live: their state, the record by which another command finds them again, and that
nothing of them outlives the run.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from velodrome import files
from velodrome.clusters.interrupts import rollback
from velodrome.clusters.k8s import RECORD, K8sOptions
from velodrome.clusters.k8s.api import Api, ApiError, NoAnswer
from velodrome.clusters.k8s.manifests import MANAGED, MANAGER, POD, RUN, Run, manifests, owned_by
from velodrome.clusters.k8s.reasons import PodState, holds_a_process, refusal, state_of
from velodrome.clusters.launcher import AllocationEnded, Notice
from velodrome.clusters.remote.allocated import HostJob, StillQueued
from velodrome.errors import BadRequest, VelodromeError

_LARGEST = 16 << 20
_RUN_NAME = re.compile(r"velodrome-[0-9a-f]{10}")
_STATE_SECONDS = 1.0
_POLL_SECONDS = 0.2
_NOTICE_SECONDS = 3.0
#: How long an image may be refused before waiting ends: a registry may have a bad moment.
_PULL_SECONDS = 25.0
_RELEASE_SECONDS = 30.0
#: The kinds of which a run may have objects.
KINDS = ("JobSet", "Job", "Service", "ConfigMap", "NetworkPolicy", "Pod")
_MOST_NAMED = 4


def new_name() -> str:
    """A name for the objects of a run, which nobody can guess."""
    return f"velodrome-{secrets.token_hex(5)}"


class HostRecord(BaseModel):
    """What was prepared in a pod."""

    folder: str
    code: str
    python: str


class PodsRecord(BaseModel):
    """The pods of a run and, from `token` on, the processes that were started in them."""

    model_config = ConfigDict(frozen=True)

    run: str = Field(pattern=_RUN_NAME.pattern)
    namespace: str
    nodes: list[str]
    options: K8sOptions
    token: str | None = None
    started: float | None = None
    hosts: dict[str, HostRecord] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)

    def job(self) -> PodsJob:
        api = Api.connect(self.options.context, self.namespace)
        return PodsJob(api, self.run, self.options, self.nodes, watched=False)


def read_record(folder: Path) -> PodsRecord:
    """What is stored about the pods of a run; `BadRequest` if it has none, or if that cannot be read."""
    try:
        return PodsRecord.model_validate(files.read_json(folder / RECORD, _LARGEST, inside=folder))
    except FileNotFoundError:
        raise BadRequest(f"run {folder.name!r} has no pods of Kubernetes to attach to") from None
    except (OSError, ValueError) as error:
        raise BadRequest(f"run {folder.name!r}: {str(folder / RECORD)!r} cannot be read: {str(error).splitlines()[0]}; "
                         f"`kubectl get pods -l {MANAGED}={MANAGER}` shows whether its pods still run: delete their "
                         "jobs, then remove the file") from None


@dataclass(frozen=True)
class RunState:
    """The states of all pods of a run."""

    pods: dict[str, PodState] = field(default_factory=dict)

    @property
    def are_running(self) -> bool:
        return bool(self.pods) and all(state.phase == "running" for state in self.pods.values())

    @property
    def is_over(self) -> bool:
        return bool(self.pods) and all(state.phase == "over" for state in self.pods.values())

    @property
    def is_ending(self) -> bool:
        return any(state.phase == "over" for state in self.pods.values())

    def wrong(self, *, only_final: bool = False) -> dict[str, str]:
        """Why pods do not run, by their name."""
        return {name: state.reason for name, state in self.pods.items()
                if state.phase != "running" and (state.is_final or not only_final)}


def sentence(reasons: dict[str, str]) -> str:
    """Several pods and their reasons; those with the same one together."""
    together: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        together.setdefault(reason, []).append(repr(name))
    parts = []
    for reason, names in together.items():
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        parts.append(f"pod{'s' if len(names) > 1 else ''} {', '.join(names[:_MOST_NAMED])}{more}: {reason}")
    return "; ".join(parts)


class PodsJob(HostJob):
    """The pods of a run, and everything beside them."""

    failure = "failed: its node or its network is down"

    def __init__(
        self, api: Api, name: str, options: K8sOptions, nodes: Sequence[str], *, watched: bool = True
    ) -> None:
        self.api, self.name, self.nodes = api, name, list(nodes)
        self._options = options
        self._state = RunState()
        self._seen: set[str] = set()
        self._unanswered: tuple[float, str] | None = None
        self._released = threading.Event()
        self._asking = threading.Lock()
        if watched:
            self.watch()

    def watch(self) -> None:
        """Ask for the state of the pods now and then."""
        threading.Thread(target=self._watch, name=self.name, daemon=True).start()

    def _watch(self) -> None:
        while not self._released.wait(_STATE_SECONDS):
            if self._state.pods:
                self.refresh()

    @property
    def selector(self) -> str:
        return f"{MANAGED}={MANAGER},{RUN}={self.name}"

    def refresh(self) -> RunState:
        """Ask now; the last known state if there is no answer."""
        with self._asking:
            try:
                self._state, self._unanswered = self._ask(), None
            except (NoAnswer, ApiError) as error:
                since = time.monotonic() if self._unanswered is None else self._unanswered[0]
                self._unanswered = since, getattr(error, "reason", None) or str(error)
        return self._state

    def _ask(self) -> RunState:
        pods: dict[str | None, dict[str, Any]] = {}
        for pod in self.api.list("Pod", self.selector):
            name = (pod["metadata"].get("labels") or {}).get(POD)
            newer = pods.get(name)
            # A Job may make another pod in place of one that was deleted: nobody starts processes there.
            if newer is None or pod["metadata"]["creationTimestamp"] < newer["metadata"]["creationTimestamp"]:
                pods[name] = pod
        states = {}
        for name in self.nodes:
            states[name] = self._state_of(name, pods.get(name), self._state.pods.get(name, PodState("waiting")))
        return RunState(states)

    def _state_of(self, name: str, listed: dict[str, Any] | None, last: PodState) -> PodState:
        """The state of a pod, of which nothing is forgotten that was known."""
        if last.phase == "over":
            return last  # events are forgotten, and pods vanish
        seen = name in self._seen
        pod = listed if listed is None or not seen or listed["metadata"]["name"] == last.pod else None
        state = state_of(pod, seen=seen)
        if state.phase == "running":
            self._seen.add(name)
            return state
        events = self._events(name, state.pod or last.pod)
        end = self.api.log(state.pod, 3).strip().rpartition("\n")[2] if state.phase == "over" and pod else ""
        state = state_of(pod, events, seen=seen, end=end)
        return state if state.pod else replace(state, pod=last.pod)

    def _events(self, name: str, pod: str) -> list[dict[str, Any]]:
        """What Kubernetes noted about a pod and its Job; nothing if we may not know."""
        events: list[dict[str, Any]] = []
        for involved in filter(None, (pod, f"{self.name}-{name}")):
            with suppress(ApiError):
                events += self.api.list("Event", fieldSelector=f"involvedObject.name={involved}")
        return events

    @property
    def unanswered(self) -> str | None:
        if (since := self._unanswered) is None or (quiet := time.monotonic() - since[0]) < self._options.silence:
            return None
        return f"the API server has not answered for {quiet:.0f} s ({since[1]})"

    @property
    def state(self) -> RunState:
        return self._state

    def end_of(self, name: str) -> str | None:
        """Why a pod is over, None while it is not."""
        state = self._state.pods.get(name)
        if self._released.is_set():
            return "was released"
        return f"is over: {state.reason}" if state is not None and state.phase == "over" else None

    def reason_of(self, name: str) -> str:
        """Why a pod is not well, as it is now; empty if nothing is known."""
        state = self.refresh().pods.get(name)
        return "" if state is None else state.reason

    @property
    def memory_limit(self) -> str:
        """What bounds the memory of a pod, in words."""
        return "its node has" if self._options.memory is None else f"its limit of {self._options.memory}"

    def is_alive(self) -> bool:
        """Whether a pod waits or runs; an error if that cannot be asked."""
        phases = [pod["status"].get("phase") for pod in self.api.list("Pod", self.selector)]
        return any(phase in ("Pending", "Running", "Unknown") for phase in phases)

    def pod_of(self, name: str) -> str | None:
        """The own name of a pod."""
        state = self._state.pods.get(name)
        return state.pod or None if state is not None else None

    def raise_if_interrupted(self, *, now: bool = False) -> None:
        state = self.refresh() if now else self._state
        gone = {name: pod.reason for name, pod in state.pods.items() if pod.was_interrupted and not pod.is_silent}
        if gone and not self._released.is_set():
            raise AllocationEnded(f"{sentence(gone)}; `velodrome resume` starts the run again, from its newest "
                                  "checkpoint")

    def silent_nodes(self) -> set[str]:
        return {name for name, pod in self.refresh().pods.items() if pod.is_silent}

    def wait_until_running(self, seconds: float, notice: Notice) -> None:
        """Return when every pod runs; `StillQueued` if that takes longer than so many seconds."""
        began, refused_since, last_notice = time.monotonic(), 0.0, ""
        while True:
            state, waited = self.refresh(), time.monotonic() - began
            if state.are_running:
                return
            self.raise_if_interrupted()
            if final := state.wrong(only_final=True):
                raise VelodromeError(f"--on k8s: {sentence(final)}")
            if (silent := self.unanswered) is not None:
                raise VelodromeError(f"--on k8s: {silent}; see whether `kubectl get pods` works here")
            wrong = state.wrong()
            refused = any("(ErrImagePull)" in reason or "(ImagePullBackOff)" in reason for reason in wrong.values())
            refused_since = (refused_since or waited) if refused else 0.0
            if waited > seconds or (refused and waited - refused_since > _PULL_SECONDS):
                raise StillQueued(
                    f"--on k8s: not all pods ran within {waited:.0f} s, so none was used: {sentence(wrong)}",
                    sentence(wrong),
                )
            if (waits_for := f"waiting for {sentence(wrong)}") != last_notice and waited > _NOTICE_SECONDS:
                last_notice = waits_for
                notice(waits_for)
            time.sleep(_POLL_SECONDS)

    def last_line(self, length: int) -> str:
        """The last line that a pod printed whose agent did not come."""
        for state in self._state.pods.values():
            if state.pod and (text := self.api.log(state.pod, 3).strip()):
                return text.rpartition("\n")[2][:length]
        return ""

    def store(self, folder: Path, **begun: Any) -> None:
        record = PodsRecord.model_validate({
            "run": self.name, "namespace": self.api.namespace, "nodes": self.nodes, "options": self._options, **begun,
        })
        files.write_text(folder / RECORD, json.dumps(record.model_dump(), indent=2) + "\n")

    def release(self) -> None:
        """Remove everything of the run, and wait until no process of it is left."""
        if self._released.is_set():
            return
        self._released.set()
        deadline = time.monotonic() + _RELEASE_SECONDS
        while True:
            with suppress(VelodromeError):
                silent = {state.pod for state in self._state.pods.values() if state.is_silent}
                # What is on a node that does not answer goes when it does: Kubernetes has been asked.
                if not set(remove(self.api, self.selector)) - silent:
                    return
            if time.monotonic() > deadline:
                return
            time.sleep(0.3)

    def abandon(self) -> None:
        """Look after it no more."""
        self._released.set()


def remove(api: Api, selector: str) -> list[str]:
    """Delete everything that carries these labels; the names of the pods whose containers still run."""
    left = []
    for kind in KINDS:
        try:
            items = api.list(kind, selector)
        except ApiError as error:
            if error.status in (403, 404):  # a kind that the cluster does not have, or that we never make
                continue
            raise
        for item in items:
            name = item["metadata"]["name"]
            if kind == "Pod" and holds_a_process(item):
                left.append(name)
            if not item["metadata"].get("deletionTimestamp"):
                api.delete(kind, name, grace=1 if kind == "Pod" else None)
    return left


def submit(api: Api, run: Run, options: K8sOptions) -> PodsJob:
    """Create everything of a run; nothing is left if a part of it is refused."""
    job = PodsJob(api, run.name, options, [pod.name for pod in run.pods], watched=False)
    with rollback(job.release):
        first, *others = manifests(run, options)
        try:
            owner = api.create(first)
            for manifest in others:
                api.create(owned_by(manifest, owner))
        except ApiError as error:
            raise VelodromeError(f"--on k8s: {refusal_of(error)}") from None
    job.watch()
    return job


def refusal_of(error: ApiError) -> str:
    """What to do about a request that was refused."""
    if (reason := refusal(error.message)) is not None:
        return reason
    if error.status == 403:
        return f"{error}; `velodrome clusters rbac k8s` prints the Role that allows it"
    if error.status == 401:
        return f"{error}: the credentials of the kubeconfig are wrong or have expired; log in again"
    return str(error)

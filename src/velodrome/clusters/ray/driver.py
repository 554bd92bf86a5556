"""The program between the controller and Ray: `python -m velodrome.clusters.ray.driver`.

Ray is imported here and not in the controller: it is large, starts threads, and prints. The controller sends requests
to the standard input and reads answers and the agents' bytes from the standard output. When the input closes, in
whatever way the controller ended, the driver leaves Ray, which ends its actors and, if it was started here, the
cluster.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from velodrome.clusters.ray import reason_of
from velodrome.clusters.remote.agent import GREETING, Decoder, Header, encode, write_all

_CONNECT_SECONDS = 10.0
_TOKEN = "RAY_AUTH_TOKEN, the file of RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"


def unanswered(address: str) -> str | None:
    """A sentence if nothing answers at an address."""
    resolved = _resolved(address)
    if resolved is None:
        return None
    host, _, port = resolved.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        return f"nothing answers at {resolved!r} ({reason}): is Ray started there, and can its port be reached?"
    return None


def token_refused(address: str) -> str | None:
    """A sentence if the cluster at an address, which Ray could not join, wants a token that we do not have.

    Only to be asked then: a token that was looked for is sent to clusters that want none, whose actors die of it.
    """
    resolved = _resolved(address)
    return None if resolved is None else _token_refused(resolved)


def _resolved(address: str) -> str | None:
    """HOST:PORT; None if only Ray can tell."""
    if "://" in address:
        return None
    if address != "auto":
        return address
    with suppress(Exception):  # not a part of Ray's interface; Ray reports what is wrong with its own search
        from ray._private.services import canonicalize_bootstrap_address

        return str(canonicalize_bootstrap_address("auto") or "") or None
    return None


def _token_refused(address: str) -> str | None:
    try:
        from ray._raylet import (  # type: ignore[attr-defined]  # compiled, without types
            AuthenticationMode,
            AuthenticationTokenLoader,
            GcsClient,
            get_authentication_mode,
        )
        from ray.exceptions import AuthenticationError
    except ImportError:  # Ray has tokens since 2.52
        return None
    where = f"the Ray cluster at {address!r}"
    sends = get_authentication_mode() == AuthenticationMode.TOKEN
    try:
        has = bool(AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))
    except AuthenticationError as error:
        return f"the token for {where} cannot be read: {error.message}"
    if sends and not has:
        return f"RAY_AUTH_MODE is 'token', and there is no token for {where}: put the cluster's into {_TOKEN}"
    try:
        GcsClient(address=address)
    except AuthenticationError:
        if sends:
            return f"{where} refuses the token: put the cluster's own into {_TOKEN}, of which the first one counts"
        return f"{where} requires a token: set RAY_AUTH_MODE=token, and put the cluster's token into {_TOKEN}"
    except Exception:
        return None  # Ray says more when it joins the cluster
    return None


_CHUNK = 1 << 16
#: Requests that wait for an actor or for resources: in threads, so that others are served, and the end of the input is
#: noticed.
_SLOW = ("open", "close", "reserve")


@ray.remote(max_restarts=0, max_concurrency=4)
class AgentActor:
    """Runs an agent on a node, which starts a process of the job, and passes its bytes on. With the actor the agent
    ends: its standard input closes."""

    def start(self, words: list[str]) -> str:
        """Start the agent; the interpreter that runs it."""
        # Ray limits the threads of its own tasks by these; the agent's processes decide for themselves.
        variables = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        self._popen = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=variables, start_new_session=True,
        )
        assert self._popen.stdout is not None
        os.set_blocking(self._popen.stdout.fileno(), True)
        return sys.executable

    def read(self) -> bytes:
        """Some bytes of the agent, as soon as there are any; none at its end."""
        assert self._popen.stdout is not None
        return os.read(self._popen.stdout.fileno(), _CHUNK)

    def write(self, data: bytes) -> None:
        """Send bytes to the agent."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(data)
        self._popen.stdin.flush()

    def stop(self) -> None:
        """Close the agent's input and wait for its end."""
        assert self._popen.stdin is not None
        with suppress(OSError):
            self._popen.stdin.close()
        try:
            self._popen.wait(10.0)
        except subprocess.TimeoutExpired:
            self._popen.kill()


class Driver:
    """Serves one controller until its end."""

    def __init__(self, output: int) -> None:
        self._output, self._sending = output, threading.Lock()
        self._groups: list[PlacementGroup] = []
        #: The node of a place, its placement group, and the number of its bundle there.
        self._places: dict[str, tuple[str, PlacementGroup, int]] = {}
        #: By the name of the stream to their agent.
        self._actors: dict[str, Any] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._requests: dict[str, Callable[..., Header]] = {
            "connect": self._connect, "reserve": self._reserve, "release": self._release, "open": self._open,
            "close": self._close,
        }

    def serve(self, source: int) -> None:
        """Answer requests until the input closes."""
        write_all(self._output, GREETING)
        decoder = Decoder()
        try:
            while data := os.read(source, _CHUNK):
                for header, body in decoder.feed(data):
                    self._do(header, body)
        finally:
            with suppress(Exception):
                ray.shutdown()

    def _send(self, header: Header, body: bytes = b"") -> None:
        with self._sending:
            write_all(self._output, encode(header, body))

    def _do(self, header: Header, body: bytes) -> None:
        kind = header.pop("do")
        if kind == "write":
            # Not waited for: Ray keeps the order of an actor's calls.
            actor = self._actors.get(header["stream"])
            if actor is not None:
                actor.write.remote(body)
            return
        if kind == "ping":  # the end of the input says more
            return
        if kind in _SLOW:
            threading.Thread(target=self._answer, args=(kind, header), daemon=True).start()
        else:
            self._answer(kind, header)

    def _answer(self, kind: str, header: Header) -> None:
        number = header.pop("n")
        try:
            answer = self._requests[kind](**header)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"}
        with suppress(OSError):
            self._send({"is": "answer", "n": number, **(answer or {})})

    def _connect(self, address: str | None) -> Header:
        if address and (why := unanswered(address)):
            return {"error": why}
        # By default Ray would join a cluster that runs on this machine, or that RAY_ADDRESS names.
        options: dict[str, Any] = {"address": address} if address else {"address": "local", "include_dashboard": False}
        try:
            ray.init(log_to_driver=False, logging_level="error", **options)
        except Exception:
            if address and (why := token_refused(address)):
                return {"error": why}
            raise
        alive = [node for node in ray.nodes() if node["Alive"]]
        addresses = [node["NodeManagerAddress"] for node in alive]
        for node in sorted(alive, key=lambda node: (node["NodeManagerAddress"], node["NodeID"])):
            where = node["NodeManagerAddress"]
            # Nodes of one machine share its address.
            name = where if addresses.count(where) == 1 else f"{where}/{node['NodeID'][:6]}"
            self._nodes[name] = node
        return {"nodes": {name: {"address": node["NodeManagerAddress"], "resources": node["Resources"]}
                          for name, node in self._nodes.items()}, "version": ray.__version__}

    def _reserve(self, places: Mapping[str, Mapping[str, Any]], limit: float) -> Header:
        """Reserve the `resources` of places on their `node`, all or none; what is missing if that takes too long."""
        nodes = [str(place["node"]) for place in places.values()]
        group = placement_group(
            [dict(place["resources"]) for place in places.values()],
            strategy="STRICT_SPREAD" if len(set(nodes)) == len(nodes) > 1 else "PACK",
            bundle_label_selector=[{"ray.io/node-id": self._nodes[node]["NodeID"]} for node in nodes],
        )
        if not group.wait(limit):
            remove_placement_group(group)
            return {"missing": self._missing([*places.values()])}
        self._groups.append(group)
        self._places.update({name: (node, group, number)
                             for number, (name, node) in enumerate(zip(places, nodes, strict=True))})
        return {}

    def _release(self) -> Header:
        """Give back all that was reserved; its actors have ended."""
        for group in self._groups:
            remove_placement_group(group)
        self._groups.clear()
        self._places.clear()
        return {}

    def _missing(self, places: Sequence[Mapping[str, Any]]) -> list[str]:
        """What of the resources is not free, node by node."""
        wanted: dict[tuple[str, str], float] = {}
        for place in places:
            for name, amount in place["resources"].items():
                wanted[place["node"], name] = wanted.get((place["node"], name), 0.0) + amount
        free = ray._private.state.available_resources_per_node()
        missing = []
        for (host, name), amount in wanted.items():
            node = self._nodes[host]
            has, left = node["Resources"].get(name, 0.0), free.get(node["NodeID"], {}).get(name, 0.0)
            if left < amount:
                missing.append(f"node {host} has {left:g} of {has:g} {name} free, but {amount:g} are needed")
        return missing or ["the nodes have the resources, but Ray did not reserve them"]

    def _open(
        self, stream: str, place: str, words: list[str], runtime_env: Mapping[str, Any], limit: float
    ) -> Header:
        """Start an agent; its bytes follow as frames of their own. A sentence if it did not start in time."""
        node, group, number = self._places[place]
        bundle = group.bundle_specs[number]
        actor = AgentActor.options(  # type: ignore[attr-defined]
            num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0),
            resources={name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")},
            runtime_env=dict(runtime_env) or None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        ).remote()
        try:
            interpreter = ray.get(actor.start.remote(words), timeout=limit)
        except Exception as error:
            with suppress(Exception):
                ray.kill(actor)
            return {"failed": f"{node!r} {reason_of(error, limit)}"}
        self._actors[stream] = actor
        threading.Thread(target=self._pass_on, args=(stream, node, actor), daemon=True).start()
        return {"interpreter": interpreter}

    def _pass_on(self, stream: str, node: str, actor: Any) -> None:
        reason = ""
        try:
            while data := ray.get(actor.read.remote()):
                self._send({"is": "data", "stream": stream}, data)
        except ray.exceptions.ActorDiedError:
            alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
            lost = self._nodes[node]["NodeID"] not in alive
            reason = "is lost: its Ray node died" if lost else "lost its agent: Ray's actor there died"
        except Exception as error:
            reason = reason_of(error)
        with suppress(OSError):
            self._send({"is": "end", "stream": stream, "reason": reason or "ended its agent"})

    def _close(self, stream: str) -> Header:
        actor = self._actors.pop(stream, None)
        if actor is not None:
            with suppress(Exception):
                ray.get(actor.stop.remote(), timeout=12)
            with suppress(Exception):
                ray.kill(actor)
        return {}


def main() -> None:
    """Serve the controller at the other end of standard input and output; what Ray prints goes to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    Driver(output).serve(0)


if __name__ == "__main__":
    main()

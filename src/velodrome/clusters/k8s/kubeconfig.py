"""Where the API server is, and how it knows us: a kubeconfig as kubectl reads it, or the service account of a pod."""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from velodrome.clusters.yaml_files import parse_yaml
from velodrome.errors import BadRequest, Unavailable, which_name

VARIABLE = "KUBECONFIG"
_USUAL = "~/.kube/config"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LARGEST = 16 << 20
_PLUGIN_SECONDS = 60.0
#: A token of a file is read again after as many seconds: it changes while a run lasts.
_TOKEN_SECONDS = 60.0
_EARLY_SECONDS = 30.0


@dataclass
class Credentials:
    """What a request carries: a token that never changes, one of a file, or one that a program returns."""

    token: str | None = None
    token_file: Path | None = None
    #: A program as kubectl starts it: `client.authentication.k8s.io`.
    plugin: Mapping[str, Any] | None = None
    basic: str | None = None
    _until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def headers(self) -> dict[str, str]:
        if self.basic is not None:
            return {"authorization": f"Basic {self.basic}"}
        with self._lock:
            if (self.plugin or self.token_file) and time.time() > self._until:
                self._renew()
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    def _renew(self) -> None:
        if self.token_file is not None:
            self.token, self._until = _text(self.token_file).strip(), time.time() + _TOKEN_SECONDS
        elif self.plugin is not None:
            status = run_plugin(self.plugin)
            self.token, self._until = status.get("token"), expiry(status)


@dataclass(frozen=True)
class Access:
    """An API server, and how to talk to it."""

    server: str
    namespace: str
    credentials: Credentials
    tls: ssl.SSLContext | None
    #: The name that the server's certificate has, if that is not in its address.
    server_name: str | None = None
    proxy: str | None = None


def find_access(context: str | None) -> Access:
    """The API server of a context, by default the current one; `BadRequest` or `Unavailable` says what is missing."""
    paths = [Path(part).expanduser() for part in (os.environ.get(VARIABLE) or _USUAL).split(os.pathsep) if part]
    existing = [path for path in paths if path.is_file()]
    if existing:
        return _of_files(existing, context)
    if (_SERVICE_ACCOUNT / "token").is_file() and context is None:
        return _of_pod()
    reason = (f"--on k8s: there is no kubeconfig at {str(paths[0])!r}; set {VARIABLE}, or see whether `kubectl get "
              "pods` works here")
    raise Unavailable(reason, [reason])


def _of_pod() -> Access:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host or "kubernetes.default.svc"
    tls = ssl.create_default_context(cafile=str(_SERVICE_ACCOUNT / "ca.crt"))
    namespace = _text(_SERVICE_ACCOUNT / "namespace").strip()
    return Access(f"https://{host}:{port}", namespace, Credentials(token_file=_SERVICE_ACCOUNT / "token"), tls)


def _of_files(paths: list[Path], context: str | None) -> Access:
    """The first file that has a name decides what it means, as for kubectl."""
    named: dict[str, dict[str, tuple[Mapping[str, Any], Path]]] = {"contexts": {}, "clusters": {}, "users": {}}
    current = None
    for path in paths:
        content = _content(path)
        current = current or content.get("current-context")
        for kind, key in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
            for item in content.get(kind) or []:
                named[kind].setdefault(item.get("name"), (item.get(key) or {}, path.parent))
    where, name = str(paths[0]), context or current
    if not name:
        raise BadRequest(f"--on k8s: {where!r} has no current context; choose one: context=NAME, of "
                         f"{', '.join(named['contexts']) or 'none'}")
    if name not in named["contexts"]:
        raise BadRequest(f"--on k8s: {where!r} has no context {name!r}; {which_name(name, named['contexts'])}")
    chosen, _ = named["contexts"][name]
    if chosen.get("cluster") not in named["clusters"]:
        raise BadRequest(f"--on k8s: context {name!r} of {where!r} names a cluster {chosen.get('cluster')!r}, which is "
                         "not there")
    cluster, folder = named["clusters"][str(chosen["cluster"])]
    user, user_folder = named["users"].get(str(chosen.get("user")), ({}, folder))
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise BadRequest(f"--on k8s: the cluster of context {name!r} in {where!r} has no server")
    try:
        credentials, status = _credentials(user, user_folder, name)
        tls = None if server.startswith("http://") else _tls(cluster, folder, user, user_folder, status)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BadRequest(f"--on k8s: context {name!r} of {where!r} cannot be used: {error}") from None
    return Access(server, str(chosen.get("namespace") or "default"), credentials, tls,
                  cluster.get("tls-server-name"), cluster.get("proxy-url"))


def _content(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is too large")
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"--on k8s: {str(path)!r} cannot be read: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadRequest(f"--on k8s: {str(path)!r} is no kubeconfig")
    return content


def _credentials(user: Mapping[str, Any], folder: Path, context: str) -> tuple[Credentials, Mapping[str, Any]]:
    """How requests are signed, and what a plugin returned, which may be a certificate."""
    if (plugin := user.get("exec")) is not None:
        plugin = {**plugin, "folder": str(folder)}
        status = run_plugin(plugin)
        return Credentials(status.get("token"), plugin=plugin, _until=expiry(status)), status
    if user.get("token"):
        return Credentials(str(user["token"])), {}
    if user.get("tokenFile"):
        return Credentials(token_file=folder / user["tokenFile"]), {}
    if user.get("username"):
        words = f"{user['username']}:{user.get('password', '')}".encode()
        return Credentials(basic=base64.b64encode(words).decode()), {}
    if (provider := user.get("auth-provider")) is not None:
        token = (provider.get("config") or {}).get("id-token")
        if token is None:
            raise ValueError(f"its user has the auth-provider {provider.get('name')!r}, which kubectl has given up: "
                             "write its `exec` plugin instead")
        return Credentials(str(token)), {}
    return Credentials(), {}


def run_plugin(plugin: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a program returns that fetches credentials, as `aws eks get-token` does; `Unavailable` if it fails."""
    variables = {str(item["name"]): str(item["value"]) for item in plugin.get("env") or []}
    api = str(plugin.get("apiVersion", "client.authentication.k8s.io/v1"))
    asked = {"apiVersion": api, "kind": "ExecCredential", "spec": {"interactive": False}}
    command = str(plugin.get("command", ""))
    if os.sep in command and not os.path.isabs(command):  # noqa: PTH117
        command = str(Path(plugin["folder"]) / command)
    words = [command, *map(str, plugin.get("args") or [])]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PLUGIN_SECONDS,
            env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = f"; {plugin['installHint'].strip()}" if plugin.get("installHint") else ""
        why = getattr(error, "strerror", None) or error
        reason = f"--on k8s: the kubeconfig's plugin {command!r} cannot be started: {why}{hint}"
        raise Unavailable(reason, [reason]) from None
    try:
        if done.returncode:
            raise ValueError
        status = json.loads(done.stdout)["status"]
        if not isinstance(status, dict):
            raise TypeError
        return status
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        reason = f"--on k8s: the kubeconfig's plugin {command!r} gave no credentials: {lines[-1][:300]}; log in again"
        raise Unavailable(reason, [reason]) from None


def expiry(status: Mapping[str, Any]) -> float:
    """Until when the credentials of a plugin are used; for ever if it does not say."""
    try:
        when = datetime.fromisoformat(str(status["expirationTimestamp"]).replace("Z", "+00:00"))
    except (KeyError, ValueError):
        return float("inf")
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - _EARLY_SECONDS


def _tls(
    cluster: Mapping[str, Any], folder: Path, user: Mapping[str, Any], user_folder: Path, status: Mapping[str, Any]
) -> ssl.SSLContext:
    authority = _data(cluster, folder, "certificate-authority")
    context = ssl.create_default_context(cadata=None if authority is None else authority.decode())
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _data(user, user_folder, "client-certificate")
    key = _data(user, user_folder, "client-key")
    if status.get("clientCertificateData"):
        certificate, key = status["clientCertificateData"].encode(), status["clientKeyData"].encode()
    if certificate is not None and key is not None:
        # The library reads files only; nobody else can read this one, and it is gone at once.
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _data(fields: Mapping[str, Any], folder: Path, name: str) -> bytes | None:
    """The content of a field that holds it in base64, or names its file."""
    if (inside := fields.get(f"{name}-data")) is not None:
        try:
            return base64.b64decode(inside, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"{name}-data is no base64") from None
    return (folder / fields[name]).read_bytes() if fields.get(name) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = f"--on k8s: {str(path)!r} cannot be read: {error.strerror}"
        raise Unavailable(reason, [reason]) from None

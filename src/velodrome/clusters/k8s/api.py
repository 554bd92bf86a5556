"""The API server: requests with JSON, and streams to a program in a container."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from velodrome.clusters.k8s.kubeconfig import Access, find_access
from velodrome.errors import Unavailable, VelodromeError, headline

if TYPE_CHECKING:
    import websocket

_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
#: The channels of a stream to a program.
STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
#: Where objects are, by their kind.
PATHS = {
    "Job": "apis/batch/v1/{}/jobs", "Service": "api/v1/{}/services", "ConfigMap": "api/v1/{}/configmaps",
    "NetworkPolicy": "apis/networking.k8s.io/v1/{}/networkpolicies", "Pod": "api/v1/{}/pods",
    "JobSet": "apis/jobset.x-k8s.io/v1alpha2/{}/jobsets", "Event": "api/v1/{}/events",
    "ResourceQuota": "api/v1/{}/resourcequotas", "Node": "api/v1/nodes",
    "SelfSubjectAccessReview": "apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
}


class ApiError(VelodromeError):
    """The API server refused a request."""

    def __init__(self, status: int, message: str, what: str) -> None:
        super().__init__(f"the API server refuses to {what}: {message}")
        self.status, self.message = status, message


class NoAnswer(VelodromeError):
    """The API server could not be asked."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(f"the API server {server} does not answer: {reason}")
        self.reason = reason


class Api:
    """An API server as one user sees it; used by several threads."""

    def __init__(self, access: Access, namespace: str | None = None) -> None:
        try:
            import urllib3
            import websocket  # noqa: F401 (needed later)
        except ImportError as error:
            missing = f"--on k8s needs the package {error.name}: pip install 'velodrome[k8s]'"
            raise Unavailable(missing, [missing]) from None
        self.access, self.namespace = access, namespace or access.namespace
        own: dict[str, Any] = {}
        if access.tls is not None:
            own = {"ssl_context": access.tls}
            if access.server_name:
                own |= {"server_hostname": access.server_name, "assert_hostname": access.server_name}
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_SECONDS)
        options: dict[str, Any] = {"maxsize": 16, "timeout": timeout, "retries": False, **own}
        self._pool = urllib3.ProxyManager(access.proxy, **options) if access.proxy else urllib3.PoolManager(**options)

    @classmethod
    def connect(cls, context: str | None, namespace: str | None) -> Api:
        """The API server of a context."""
        return cls(find_access(context), namespace)

    def request(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, object] | None = None, what: str = ""
    ) -> Any:
        """The answer to a request as JSON; `ApiError` if it is refused, `NoAnswer` without one. `what` is what it is
        for, behind `refuses to`."""
        import urllib3

        url = f"{self.access.server}/{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"accept": "application/json", "content-type": "application/json",
                   **self.access.credentials.headers()}
        data = None if body is None else json.dumps(body).encode()
        try:
            response = self._pool.request(method, url, body=data, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise NoAnswer(self.access.server, reason_of(error)) from None
        text = response.data.decode(errors="replace")
        if response.status >= 400:
            raise ApiError(response.status, _message(text, response.status), what or f"{method} /{path}")
        try:
            return json.loads(text)
        except ValueError:
            return text

    def path(self, kind: str) -> str:
        return PATHS[kind].format(f"namespaces/{self.namespace}")

    def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object; the object as it is now."""
        kind, name = str(manifest["kind"]), str(manifest["metadata"].get("name", ""))
        what = f"create {kind} {name!r} in namespace {self.namespace!r}"
        made: dict[str, Any] = self.request("POST", self.path(kind), manifest, what=what,
                                            query={"dryRun": "All"} if dry_run else None)
        return made

    def list(self, kind: str, selector: str = "", **query: object) -> list[dict[str, Any]]:
        """The objects of a kind that carry these labels."""
        what = f"list {kind}s in namespace {self.namespace!r}"
        asked = {"labelSelector": selector, **query} if selector else dict(query)
        answer = self.request("GET", self.path(kind), query=asked, what=what)
        items: list[dict[str, Any]] = answer.get("items") or []
        return items

    def delete(self, kind: str, name: str, *, grace: int | None = None) -> None:
        """Delete an object and, in the background, what it owns; nothing if it is not there."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self.request("DELETE", f"{self.path(kind)}/{name}", options,
                         what=f"delete {kind} {name!r} in namespace {self.namespace!r}")
        except ApiError as error:
            if error.status != 404:
                raise

    def log(self, pod: str, lines: int = 20) -> str:
        """The end of what a container printed; empty if that is not known."""
        try:
            text = self.request("GET", f"{self.path('Pod')}/{pod}/log", query={"tailLines": lines})
        except VelodromeError:
            return ""
        return text if isinstance(text, str) else json.dumps(text)

    def may(self, verb: str, group: str, resource: str, *, sub: str = "", everywhere: bool = False) -> bool:
        """Whether we are allowed to do something, in the namespace or for all of the cluster."""
        about = {"verb": verb, "group": group, "resource": resource, "subresource": sub}
        if not everywhere:
            about["namespace"] = self.namespace
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                  "spec": {"resourceAttributes": about}}
        answer = self.request("POST", self.path("SelfSubjectAccessReview"), review, what="say what we may do")
        return bool(answer["status"].get("allowed"))

    def exec(self, pod: str, container: str, command: Sequence[str]) -> websocket.WebSocket:
        """A stream to a program that is started in a container; `ApiError` or `NoAnswer` if there is none."""
        import websocket

        query = urlencode([("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true"),
                           *(("command", word) for word in command)])
        server = urlsplit(self.access.server)
        scheme = "wss" if server.scheme == "https" else "ws"
        url = f"{scheme}://{server.netloc}{server.path}/{self.path('Pod')}/{pod}/exec?{query}"
        tls: dict[str, Any] = {} if self.access.tls is None else {"context": self.access.tls}
        if self.access.server_name:
            tls["server_hostname"] = self.access.server_name
        stream = websocket.WebSocket(sslopt=tls, enable_multithread=True, skip_utf8_validation=True)
        through: dict[str, Any] = {"http_no_proxy": ["*"]}
        if self.access.proxy:
            proxy = urlsplit(self.access.proxy)
            through = {"http_proxy_host": proxy.hostname, "http_proxy_port": proxy.port, "proxy_type": "http"}
        try:
            stream.connect(  # type: ignore[no-untyped-call]
                url, header=[f"{name}: {value}" for name, value in self.access.credentials.headers().items()],
                subprotocols=["v4.channel.k8s.io"], timeout=_CONNECT_SECONDS, **through,
            )
        except websocket.WebSocketBadStatusException as error:
            body = (error.resp_body or b"").decode(errors="replace")
            reason = _message(body, error.status_code)
            raise ApiError(error.status_code, reason, f"start a program in pod {pod!r}") from None
        except (websocket.WebSocketException, OSError) as error:
            raise NoAnswer(self.access.server, reason_of(error)) from None
        stream.settimeout(None)
        if isinstance(stream.sock, socket.socket):
            stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def close(self) -> None:
        self._pool.clear()


def reason_of(error: BaseException) -> str:
    """Why there was no answer, in a few words."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = getattr(inner, "reason", None) if isinstance(getattr(inner, "reason", None), BaseException) else (
            inner.__cause__ or inner.__context__)
    return headline(str(error).rpartition(": ")[2]) or type(error).__name__


def _message(text: str, status: int) -> str:
    """What the API server says."""
    try:
        answer = json.loads(text)
        return headline(str(answer["message"]))
    except (ValueError, KeyError, TypeError):
        return headline(text.strip()) or f"HTTP status {status}"

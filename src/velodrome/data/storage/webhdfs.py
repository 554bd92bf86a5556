"""fsspec's WebHDFS, with a limit to every wait, and avoiding DataNodes that do not answer."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

from fsspec.implementations.webhdfs import WebHDFS
from requests import ConnectionError as NoConnection
from requests import PreparedRequest, Timeout
from requests.adapters import HTTPAdapter

#: How long a DataNode that did not answer is not asked again. The NameNode itself takes ten minutes to notice.
_AVOID_SECONDS = 120.0
_CONNECT_SECONDS = 10.0

#: Host and port, and until when it is avoided; shared, because connections are reopened after a failure.
_avoided: dict[str, float] = {}


class LimitedWebHDFS(WebHDFS):  # type: ignore[misc]
    """WebHDFS that asks the NameNode to leave out DataNodes that did not answer."""

    def __init__(self, host: str, port: int, *, wait: float, **more: Any) -> None:
        self._namenode, self._wait = f"{host}:{port}", wait
        super().__init__(host, port=port, **more)

    def _connect(self) -> None:
        super()._connect()
        self.session.trust_env = False  # a proxy of the environment does not lead into the cluster
        for prefix in ("http://", "https://"):
            self.session.mount(prefix, _Limited(self._namenode, self._wait))

    def _call(self, op: str, *arguments: Any, **more: Any) -> Any:
        now = time.monotonic()
        if op == "OPEN" and any(until > now for until in _avoided.values()):
            more["excludedatanodes"] = ",".join(self._excluded(more["path"], more["offset"], more["length"], now))
        return super()._call(op, *arguments, **more)

    def _excluded(self, path: str, offset: int, length: int, now: float) -> list[str]:
        """The avoided ones among those that hold these bytes, as the NameNode names them."""
        located = super()._call("GET_BLOCK_LOCATIONS", path=path, offset=offset, length=length).json()
        nodes = [node for block in located["LocatedBlocks"]["locatedBlocks"] for node in block["locations"]]
        return sorted({
            f"{node['ipAddr']}:{node['xferPort']}" for node in nodes
            if max(_avoided.get(f"{node[key]}:{node['infoPort']}", 0.0) for key in ("ipAddr", "hostName")) > now
        })


class _Limited(HTTPAdapter):
    """Limits every wait, as `requests` does not by default, and raises where fsspec would return a refusal as data."""

    def __init__(self, namenode: str, wait: float) -> None:
        self._namenode, self._wait = namenode, wait
        super().__init__()

    def send(self, request: PreparedRequest, **more: Any) -> Any:  # type: ignore[override]
        more["timeout"] = (min(_CONNECT_SECONDS, self._wait), self._wait)
        asked = urlsplit(request.url or "").netloc
        try:
            response = super().send(request, **more)
        except (NoConnection, Timeout):
            if asked != self._namenode:
                _avoided[asked] = time.monotonic() + _AVOID_SECONDS
            raise
        if asked != self._namenode:
            response.raise_for_status()
        return response

"""Connects to remote stores: which fsspec file system serves an address, and with which limits.

Nothing here is imported before an address of that kind is used: each kind is an extra.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from typing import Any
from urllib.parse import urlsplit

from velodrome.errors import BadRequest

#: Scheme, and the extra that installs what it needs.
REMOTE = {"hdfs": "hdfs", "webhdfs": "hdfs", "s3": "s3"}
_WEBHDFS_PORT = 9870


class ConnectError(Exception):
    """What is missing on this machine, as a sentence."""


def split_url(url: str) -> tuple[str, str]:
    """The scheme of an address, `file` for a folder, and the path of a folder."""
    scheme, colon, rest = url.partition("://")
    if not url:
        raise BadRequest("'' is not an address: give a folder, hdfs://host:port/path, webhdfs://… or s3://bucket/path")
    if "\0" in url:
        raise BadRequest(f"{url!r} is not an address: it has a NUL character")
    if not colon:
        return "file", url
    scheme = scheme.lower()
    if scheme == "file":
        if not rest.startswith("/"):
            raise BadRequest(f"{url!r} is not the address of a file: write three slashes, as in file:///data/shards")
        return scheme, rest
    if scheme not in REMOTE:
        known = ", ".join(f"{name}://" for name in ("file", *REMOTE))
        raise BadRequest(f"{url!r}: no kind of store {scheme!r}; give a folder or an address with {known}")
    parts = urlsplit(url)
    try:
        host, path, _ = parts.hostname, parts.path, parts.port
    except ValueError as error:
        raise BadRequest(f"{url!r} is not an address: {error}") from None
    if not host or (scheme != "s3" and not path):
        shape = "s3://bucket/path" if scheme == "s3" else f"{scheme}://host:port/path"
        raise BadRequest(f"{url!r} is not a complete address: write it as {shape}")
    return scheme, path


def is_remote(scheme: str) -> bool:
    return scheme in REMOTE


def connect(url: str, scheme: str, wait: float) -> tuple[Any, str]:
    """The file system behind an address and the path on it."""
    try:
        return {"hdfs": _hdfs, "webhdfs": _webhdfs, "s3": _s3}[scheme](url, wait)
    except ImportError as error:
        extra = REMOTE[scheme]
        raise ConnectError(
            f"{url!r} needs {error.name or 'a package'}, which is not installed: pip install 'velodrome[{extra}]'"
        ) from None


def _hdfs(url: str, wait: float) -> tuple[Any, str]:
    # fsspec's own entry for hdfs:// wants a Java machine and libhdfs; this client wants neither.
    from hdfs_native.fsspec import HdfsFileSystem

    parts = urlsplit(url)
    if parts.hostname and parts.port:  # the client would retry for ever; without a port it is a name service
        socket.create_connection((parts.hostname, parts.port), timeout=min(10.0, wait)).close()
    return HdfsFileSystem(parts.hostname, parts.port, skip_instance_cache=True), parts.path.rstrip("/")


def _webhdfs(url: str, wait: float) -> tuple[Any, str]:
    from velodrome.data.storage.webhdfs import LimitedWebHDFS

    parts = urlsplit(url)
    fs = LimitedWebHDFS(
        parts.hostname or "", parts.port or _WEBHDFS_PORT, wait=wait, skip_instance_cache=True,
        user=parts.username or os.environ.get("HADOOP_USER_NAME") or getpass.getuser(),
    )
    return fs, parts.path.rstrip("/")


def _s3(url: str, wait: float) -> tuple[Any, str]:
    from s3fs import S3FileSystem

    # Endpoint, keys and region are taken from the environment and ~/.aws, as every AWS tool does.
    config = {"connect_timeout": min(10.0, wait), "read_timeout": wait, "retries": {"max_attempts": 2}}
    fs = S3FileSystem(config_kwargs=config, skip_instance_cache=True, use_listings_cache=False)
    parts = urlsplit(url)
    return fs, (parts.netloc + parts.path).rstrip("/")


def is_refusal(error: Exception) -> bool:
    """Whether a store refused permission, so that a retry would not help."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    text = str(error).lower()
    return status in (401, 403) or "permission denied" in text or "accesscontrolexception" in text


def reason_of(error: BaseException) -> str:
    """The message of an error, as the end of a sentence: one line, without the noise of its back end."""
    text = str(getattr(error, "strerror", None) or error or type(error).__name__)
    text = text.replace("\\n", "\n").replace('\\"', '"')
    if plain := re.search(r"\[Errno -?\d+\] ([^\'\"()]+)|(Permission denied: [^\n]+)|RPCError\(\S+ \"([^\n]+)", text):
        text = next(group for group in plain.groups() if group)
    text = re.split(r"\s+at [\w.$]+\(| for url: ", text)[0]
    text = re.sub(r"\s+", " ", text).strip(" .:")
    return text if len(text) <= 160 else f"{text[:160]}…"

"""A server that speaks S3, for the tests: moto's, over HTTP on loopback, in a process of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_UP_SECONDS = 60.0
_SERVE = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"


def environment(port: int) -> dict[str, str]:
    """What every AWS tool reads to find its server and its keys."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
    }


@contextmanager
def s3(bucket: str) -> Iterator[dict[str, str]]:
    """The environment that leads to a running server with an empty bucket."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    # With setpriv it ends with us, even if we are killed.
    with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    server = subprocess.Popen(
        [*with_us, sys.executable, "-c", _SERVE, str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + _UP_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > end or server.poll() is not None:
                    raise RuntimeError(f"the S3 server did not come up in {_UP_SECONDS:.0f} s") from None
                time.sleep(0.1)
        _make_bucket(bucket, environment(port))
        yield environment(port)
    finally:
        server.kill()
        server.wait(10)


def _make_bucket(bucket: str, variables: dict[str, str]) -> None:
    code = f"import boto3; boto3.client('s3').create_bucket(Bucket={bucket!r})"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, timeout=280, check=True)

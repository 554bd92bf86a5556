"""Why a running Ray cluster cannot be joined: Ray waits for minutes where nothing answers, and names no token.

Belongs to the driver: imports Ray.
"""

from __future__ import annotations

import socket
from contextlib import suppress

_CONNECT_SECONDS = 10.0
_TOKEN = "RAY_AUTH_TOKEN, the file of RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"


def unanswered(address: str) -> str | None:
    """A sentence if nothing answers at an address."""
    found = _resolved(address)
    if found is None:
        return None
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        return f"nothing answers at {found!r} ({reason}): is Ray started there, and can its port be reached?"
    return None


def token_refused(address: str) -> str | None:
    """A sentence if the cluster at an address, which Ray could not join, wants a token that we do not have.

    Only to be asked then: a token that was looked for is sent to clusters that want none, whose actors die of it.
    """
    found = _resolved(address)
    return None if found is None else _token_refused(found)


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
        return f"{where} wants a token: set RAY_AUTH_MODE=token, and put the cluster's token into {_TOKEN}"
    except Exception:
        return None  # Ray says more when it joins the cluster
    return None

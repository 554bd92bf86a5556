"""Downloads a file over HTTP: every wait is limited, and an interrupted download resumes where it stopped."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Seconds without a byte after which a server counts as silent.
SILENCE_SECONDS = 15.0
#: Seconds after which one attempt ends even if bytes still trickle in; the next resumes from there.
ATTEMPT_SECONDS = 300.0
ATTEMPTS = 3
PAUSE_SECONDS = 0.5
_CHUNK = 1 << 18


class DownloadError(Exception):
    """Why an address did not give the file, as the end of a sentence."""


def download(url: str, part: Path, largest: int, advance: Callable[[int], None]) -> None:
    """Fetch into `part`, keeping what it already holds; what came so far stays there for the next try.

    A file of more than `largest` bytes is refused. `advance` is called with the number of bytes in `part`.
    """
    for attempt in range(1, ATTEMPTS + 1):
        before = _size(part)
        try:
            _attempt(url, part, largest, advance)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and before:  # the part holds more than the file does: begin again
                part.unlink(missing_ok=True)
                continue
            reason = f"the server answered {error.code} {error.reason}"
            worth_another = error.code >= 500
        except (OSError, http.client.HTTPException, DownloadError) as error:
            reason = _reason(error)
            worth_another = _size(part) > before
        if attempt == ATTEMPTS or not worth_another:
            raise DownloadError(reason)
        time.sleep(PAUSE_SECONDS * attempt)
    raise DownloadError("the server gives no range of the file that fits")


def _attempt(url: str, part: Path, largest: int, advance: Callable[[int], None]) -> None:
    have = _size(part)
    headers = {"User-Agent": "velodrome", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    end = time.monotonic() + ATTEMPT_SECONDS
    with _OPENER.open(urllib.request.Request(url, headers=headers), timeout=SILENCE_SECONDS) as response:
        if have and not _continues(response, have):
            have = 0
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        if total is not None and total > largest:
            raise DownloadError(f"the file has {total:,} bytes, and at most {largest:,} were expected")
        with part.open("ab" if have else "wb") as stream:
            while data := response.read1(_CHUNK):
                have += len(data)
                if have > largest:
                    raise DownloadError(f"the file is longer than the {largest:,} bytes that were expected")
                stream.write(data)
                advance(have)
                if time.monotonic() > end:
                    raise DownloadError(f"only {have:,} bytes came in {ATTEMPT_SECONDS:.0f} s")
        if total is not None and have < total:
            raise DownloadError(f"the connection broke off after {have:,} of {total:,} bytes")


def _continues(response: Any, have: int) -> bool:
    given: str = response.headers.get("Content-Range", "")
    return response.status == 206 and given.startswith(f"bytes {have}-")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        error = error.reason
    if isinstance(error, TimeoutError):
        return f"no answer for {SILENCE_SECONDS:.0f} s"
    text = error.strerror if isinstance(error, OSError) else None
    return text or str(error) or type(error).__name__


def _http_only() -> urllib.request.OpenerDirector:
    """An opener that a redirect cannot lead to a file of this machine, as the default one's extra handlers might."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


_OPENER = _http_only()

"""Fetches files: from the user's mirror, a system package's folder, or the publisher, and checks what came.

Every wait is limited, and an interrupted download resumes where it stopped.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.data import cache
from velodrome.data.base import DataError, Progress
from velodrome.data.cache import RemoteFile

#: Seconds without a byte after which a server counts as silent.
SILENCE_SECONDS = 15.0
#: Seconds after which one attempt ends even if bytes still trickle in; the next resumes from there.
ATTEMPT_SECONDS = 300.0
ATTEMPTS = 3
PAUSE_SECONDS = 0.5
_CHUNK = 1 << 18


class DownloadError(Exception):
    """Why a source did not give the file, as the end of a sentence."""


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
            raise DownloadError(f"the file has {total:,} bytes, but at most {largest:,} were expected")
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


MIRROR = "VELODROME_DATA_MIRROR"
_GZIP = b"\x1f\x8b"
#: Allowance for gzip's own header and for a payload that does not compress.
_SLACK = 1 << 16


def ensure(
    data_set: str, files: Sequence[RemoteFile], *, system: Path | None, publishers: Sequence[str],
    progress: Progress,
) -> None:
    """Make sure that the cache holds every file of a data set; fetch those that are missing or damaged."""
    folder = cache.folder() / data_set
    if all(cache.read(folder / file.payload_name, file) is not None for file in files):
        return
    # A process that waited for the folder may find the work done.
    with cache.storing(f"data set {data_set!r}", folder), cache.exclusive(folder):
        missing = [file for file in files if cache.read(folder / file.payload_name, file) is None]
        total, done = sum(file.gz_bytes for file in missing), 0
        for file in missing:

            def advance(got: int, base: int = done, name: str = file.name) -> None:
                progress(min(base + got, total), total, f"{data_set}/{name}")

            advance(0)
            payload = _fetch(data_set, file, folder, system, publishers, advance)
            cache.store(folder / file.payload_name, payload)
            done += file.gz_bytes
            advance(file.gz_bytes)
        cache.tidy(folder)


@contextmanager
def using_mirror(place: str | None) -> Iterator[None]:
    """Within this context, take publishers' files from this folder or address, also in processes that it starts.

    None leaves everything as it is.
    """
    before = os.environ.get(MIRROR)
    if place is not None:
        os.environ[MIRROR] = place if "://" in place or not place else str(Path(place).expanduser().absolute())
    try:
        yield
    finally:
        if before is not None:
            os.environ[MIRROR] = before
        elif place is not None:
            os.environ.pop(MIRROR, None)


def mirror_folder() -> Path | None:
    """The user's mirror, if it is a folder."""
    mirror = os.environ.get(MIRROR, "")
    return Path(mirror).expanduser() if mirror and "://" not in mirror else None


def _fetch(
    data_set: str, file: RemoteFile, folder: Path, system: Path | None, publishers: Sequence[str],
    advance: Callable[[int], None],
) -> bytes:
    tried = []
    for where, fetch in _sources(data_set, file, folder, system, publishers, advance):
        try:
            return fetch()
        except DownloadError as error:
            tried.append(f"{where} ({error})")
    mirror = "" if os.environ.get(MIRROR) else f"{MIRROR} (not set); "
    raise DataError(
        f"data set {data_set!r}: {file.name} could not be fetched from {mirror}{'; '.join(tried)}. Set --mirror or "
        f"{MIRROR} to a folder or an http(s) address that holds {data_set}/{file.name}"
    )


def _sources(
    data_set: str, file: RemoteFile, folder: Path, system: Path | None, publishers: Sequence[str],
    advance: Callable[[int], None],
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Where the file may come from, in order of preference, each with the way to get it."""
    part = folder / f"{file.name}{cache.DOWNLOADING}"
    mirror = os.environ.get(MIRROR, "")
    if mirror.startswith(("http://", "https://")):
        url = f"{mirror.rstrip('/')}/{data_set}/{file.name}"
        yield f"the mirror {url}", lambda: _from_web(url, file, part, advance)
    elif mirror:
        place = Path(mirror).expanduser() / data_set
        yield f"the mirror {place}", lambda: _from_folder(place, file)
    if system is not None:
        yield f"the system package's folder {system}", lambda: _from_folder(system, file)
    for base in publishers:
        yield base + file.name, lambda url=base + file.name: _from_web(url, file, part, advance)  # type: ignore[misc]


def _from_folder(folder: Path, file: RemoteFile) -> bytes:
    for name in (file.name, file.payload_name):
        try:
            with files.open_regular(folder / name) as stream:
                return _payload(stream.read(file.bytes + _SLACK), file)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DownloadError(f"{name}: {error.strerror or error}") from None
    raise DownloadError("no such file" if folder.is_dir() else "no such folder")


def _from_web(url: str, file: RemoteFile, part: Path, advance: Callable[[int], None]) -> bytes:
    """Download and check. What an earlier try left may be of another source, so a wrong checksum leads to one fresh
    download."""
    resumed = part.exists()
    download(url, part, file.bytes + _SLACK, advance)
    data = files.read_bytes(part, file.bytes + _SLACK)
    part.unlink()
    try:
        return _payload(data, file)
    except DownloadError:
        if not resumed:
            raise
    return _from_web(url, file, part, advance)


def _payload(data: bytes, file: RemoteFile) -> bytes:
    """The unpacked payload; refused if it is not what the publisher published."""
    payload = data
    if data.startswith(_GZIP) and not file.archive:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            payload = unpacker.decompress(data, file.bytes + 1)
        except zlib.error as error:
            raise DownloadError(f"not a whole gzip file: {error}") from None
    if len(payload) == file.bytes and hashlib.sha256(payload).hexdigest() == file.sha256:
        return payload
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    raise DownloadError(
        f"wrong checksum: {len(payload):,} bytes inside instead of {file.bytes:,}, md5 {md5} instead of {file.gz_md5}"
        if len(payload) != file.bytes
        else f"wrong checksum: md5 {md5}, but the published file has {file.gz_md5}"
    )

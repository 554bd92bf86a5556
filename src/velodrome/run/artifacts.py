"""What a run leaves, at another address: model, checkpoints, curves and result, sent after training and fetched again.

A list of all files is written last, so that a run that was sent in part is none. What is fetched comes from anywhere:
names that lead elsewhere are refused, and every file must be what the list says. Its code is trusted no more than that
of any stored run.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from velodrome import files
from velodrome.data.storage.store import open_store, split_url, writing
from velodrome.errors import BadRequest, VelodromeError, bytes_text
from velodrome.job.names import check_name

INDEX = "artifacts.json"
_LARGEST_INDEX, _MOST_FILES, _MOST_BYTES = 4 << 20, 10_000, 1 << 40
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class _Artifact(BaseModel):
    name: str
    bytes: int = Field(ge=0, le=_MOST_BYTES)
    sha256: str


class _Index(BaseModel):
    """The files of a run that was sent."""

    run: str
    files: list[_Artifact] = Field(max_length=_MOST_FILES)


def is_address(name: str) -> bool:
    """Whether a run is named by where it was sent, as `s3://bucket/models/monday`."""
    return "://" in name


def check_address(url: str) -> None:
    """Refuse an address at which nothing can be stored, before anything trains."""
    try:
        split_url(url)
        open_store(url).size(INDEX)
    except VelodromeError as error:
        raise BadRequest(f"--artifacts {url!r}: {error}") from None


def send(run: Path, url: str) -> str:
    """Copy the files of a run to URL/NAME; returns that address."""
    address = f"{url.rstrip('/')}/{run.name}"
    artifacts: list[_Artifact] = []
    for path, _, names in files.walk(run):
        folder = path.relative_to(run).as_posix()
        for name in sorted(names):
            if not _PART.fullmatch(name) or not (path / name).is_file() or (path / name).is_symlink():
                continue
            within = name if folder == "." else f"{folder}/{name}"
            artifacts.append(_Artifact(name=within, bytes=(path / name).stat().st_size,
                                   sha256=files.sha256_of(path / name)))
            store = open_store(address if folder == "." else f"{address}/{folder}")
            staged = store.stage(name)
            try:
                with writing(store.address(name)):
                    shutil.copyfile(path / name, staged.path)
                staged.upload()
                staged.commit()
            finally:
                staged.discard()
    open_store(address).write(INDEX, _Index(run=run.name, files=artifacts).model_dump_json(indent=1).encode())
    return address


def fetch(url: str, runs: Path) -> Path:
    """The run that was sent to an address, as a folder among the runs; it is fetched once."""
    address = url.rstrip("/")
    name = check_name(address.rpartition("/")[2])
    store = open_store(address)
    size = store.size(INDEX)
    if size is None:
        raise BadRequest(f"{url!r} holds no run: `velodrome train --artifacts URL` sends one to URL/NAME, and that is "
                         "its address")
    if size > _LARGEST_INDEX:
        raise BadRequest(f"{url!r}: its {INDEX} has {bytes_text(size)}")
    text = store.read(INDEX)
    try:
        index = _Index.model_validate_json(text)
    except ValidationError as error:
        raise BadRequest(f"{url!r}: its {INDEX} cannot be read: {error.errors()[0]['msg']}") from None
    target = runs / name
    if target.exists():
        if (target / INDEX).is_file() and (target / INDEX).read_bytes() == text:
            return target
        raise BadRequest(f"{url!r}: {str(target)!r} exists and is another run: give another folder with --runs")
    runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=runs) as scratch:
        folder = Path(scratch) / name
        for artifact in index.files:
            _fetch_file(address, artifact, folder)
        files.write_bytes(folder / INDEX, text)
        folder.rename(target)
    return target


def _fetch_file(address: str, artifact: _Artifact, folder: Path) -> None:
    parts = artifact.name.split("/")
    if not all(map(_PART.fullmatch, parts)) or len(parts) > 8:
        raise BadRequest(f"{address!r} lists a file {artifact.name!r}, whose name leads elsewhere")
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    store, received = open_store("/".join([address, *parts[:-1]])), 0
    with path.open("wb") as stream:
        for chunk in store.chunks(parts[-1]):
            received += len(chunk)
            if received > artifact.bytes:
                break
            stream.write(chunk)
    if received != artifact.bytes or files.sha256_of(path) != artifact.sha256:
        raise VelodromeError(f"{address}/{artifact.name} is not the file that was sent: send the run again")

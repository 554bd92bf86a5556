"""The index of a set of shards: what it holds, file by file. It is written last, so what has one is whole.

Its files are downloaded one by one: each is complete and verified under its name, and resumed where it was interrupted.

pydantic checks the fields, which took a third more lines by hand and named the value of some faults without the field;
what fields must have in common is checked here.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from velodrome.data import cache
from velodrome.data.base import Checked, DataError, Progress
from velodrome.data.examples import ChannelStatistics
from velodrome.data.storage.store import Store
from velodrome.errors import LONGEST_LINE, shown
from velodrome.files import sha256_of

INDEX = "index.json"
SCHEMA = 1
PartName = Literal["train", "validation", "test"]
PARTS: tuple[PartName, ...] = get_args(PartName)
Encoding = Literal["png", "jpeg", "raw"]
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
_LARGEST_INDEX = 64 << 20
#: Fields that sets of earlier versions do not have; left out where there is nothing to say.
_OPTIONAL = ("statistics", "overlaps")
ENDING = ".tfrecord"
_OURS = re.compile(r"[A-Za-z0-9_-]+-(train|validation|test)-[0-9]{5}-of-[0-9]{5}(-v[0-9]+)?\.tfrecord")
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 53)]
Size = Annotated[Count, Field(gt=0)]
_Line = Annotated[str, AfterValidator(partial(shown, longest=LONGEST_LINE))]


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True)


class ShardFile(_Stored):
    """One TFRecord file. Of a part with n files, the k-th holds the examples k, k + n, k + 2n…"""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.tfrecord$")]
    examples: Count
    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Index(_Stored):
    """What is known of a set without opening its files. Everything is checked: files of others are named in it."""

    name: str
    title: str
    licence: str
    homepage: str
    classes: Size
    class_names: tuple[str, ...]
    #: Height, width, channels.
    shape: tuple[Size, Size, Size]
    encoding: Encoding
    #: A pixel times this is between 0 and 1.
    scale: Annotated[float, Field(gt=0, le=1)]
    #: What divided the parts.
    seed: Count
    validation: Annotated[float, Field(ge=0, lt=1)]
    parts: dict[PartName, tuple[ShardFile, ...]]
    #: Of the training part, before it was encoded: a worker that has only some of its files needs them.
    statistics: ChannelStatistics | None = None
    #: What was found about images that occur twice, as sentences.
    overlaps: Annotated[tuple[_Line, ...], Field(max_length=10)] = ()

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for part, files in self.parts.items():
            _check_distribution(part, files)
        names = [file.name for file in self.every_file]
        if len(set(names)) != len(names):
            raise ValueError("it names a file twice")
        if math.prod(self.shape) > 1 << 30:
            raise ValueError(f"it claims images of shape {self.shape}")
        if self.class_names and len(self.class_names) != self.classes:
            raise ValueError(f"it has {self.classes} classes and {len(self.class_names)} names of classes")
        channels = self.shape[2]
        for row in (self.statistics.mean, self.statistics.deviation) if self.statistics else ():
            if len(row) != channels or not all(0 <= number <= 255 for number in row):
                raise ValueError(f"its statistics are not those of {channels} channels of bytes")
        return self

    def files(self, part: PartName) -> tuple[ShardFile, ...]:
        return self.parts.get(part, ())

    def examples(self, part: PartName) -> int:
        return sum(file.examples for file in self.files(part))

    @property
    def every_file(self) -> list[ShardFile]:
        return [file for files in self.parts.values() for file in files]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.every_file)

    @property
    def key(self) -> str:
        """Changes whenever anything in the set does."""
        return hashlib.sha256(self.as_json().encode()).hexdigest()

    def as_json(self) -> str:
        fields = {name: value for name, value in self.model_dump().items() if value or name not in _OPTIONAL}
        return json.dumps({"schema": SCHEMA, **fields}, indent=2) + "\n"


def file_name(name: str, part: PartName, number: int, count: int, generation: int = 1) -> str:
    """`mnist-train-00000-of-00016.tfrecord`; a data set with a place for a name is named by the end of it."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", re.split(r"[:/]", name.rstrip("/"))[-1]).strip("-_") or "data"
    mark = "" if generation == 1 else f"-v{generation}"
    return f"{plain}-{part}-{number:05d}-of-{count:05d}{mark}.tfrecord"


def is_ours(name: str) -> bool:
    """Whether a file is named as `file_name` does."""
    return _OURS.fullmatch(name) is not None


def strays(store: Store, known: Iterable[str]) -> list[str]:
    """TFRecord files at the place of a set that do not belong to it: whoever reads `*.tfrecord` reads them, too."""
    known = {*known}
    return [file.name for file in store.list() if file.name.endswith(ENDING) and file.name not in known]


def read_index(store: Store) -> Index:
    """The index of the set at an address; `DataError` says why there is none, or why it cannot be used."""
    size = store.size(INDEX)
    where = store.address(INDEX)
    if size is None:
        if left := len(strays(store, ())):
            raise DataError(
                f"{store.url!r} has {left} TFRecord files and no {INDEX}: writing it never came to its end; write it "
                "again with velodrome data shard --force"
            )
        raise DataError(f"{store.url!r} holds no set of shards: write one with velodrome data shard NAME --to URL")
    if size > _LARGEST_INDEX:
        raise DataError(f"{where!r} has {size:,} bytes, too many for an index of shards")
    try:
        fields = json.loads(store.read(INDEX, length=_LARGEST_INDEX))
        schema = fields.get("schema") if isinstance(fields, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"its schema is {shown(repr(schema))}, but this version of Velodrome reads {SCHEMA}")
        return Index.model_validate(fields)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where!r} is not a usable index of shards: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """What is wrong with an index, as the end of a sentence: the first field that cannot be, its value, and why."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False)[0]
    why = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return why
    if first["type"] == "missing":
        return f"it has no {first['loc'][-1]!r}"
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    return f"its {shown(place)} is {shown(repr(first['input']))}: {why}"


def _check_distribution(part: str, files: tuple[ShardFile, ...]) -> None:
    """Examples are distributed round-robin: file sizes differ by one at most, and never increase from file to file."""
    counts = [file.examples for file in files]
    total = sum(counts)
    if counts != [len(range(place, total, len(counts))) for place in range(len(counts))]:
        raise ValueError(f"the examples of part {part!r} are not distributed evenly over its files")


def fetch(store: Store, files: Sequence[ShardFile], folder: Path, progress: Progress) -> list[Path]:
    """Paths of the files below a folder that belongs to this set only.

    A file is under its name only when its checksum was right. Processes that want different files do not wait for
    each other; those that want the same one do.
    """
    total, done = sum(file.bytes for file in files), 0
    with cache.storing("the shards", folder):
        for file in files:
            target = folder / file.name
            if not _is_there(target, file):
                # A process that waited here may find the work done.
                with cache.exclusive(folder / f".{file.name}.lock", also=_part_of(target)):
                    if not _is_there(target, file):
                        _download(store, file, target, progress, done, total)
            done += file.bytes
            progress(done, total, file.name)
    return [folder / file.name for file in files]


def _is_there(target: Path, file: ShardFile) -> bool:
    return target.exists() and target.stat().st_size == file.bytes


def _part_of(target: Path) -> Path:
    """Where a file is until it is complete."""
    return target.with_name(f".{target.name}.part")


def _download(store: Store, file: ShardFile, target: Path, progress: Progress, base: int, total: int) -> None:
    part = _part_of(target)
    for attempt in ("resumed", "fresh"):
        have = part.stat().st_size if part.exists() else 0
        if attempt == "resumed" and have == 0:
            continue
        if attempt == "fresh" or have > file.bytes:
            part.unlink(missing_ok=True)
            have = 0
        digest = hashlib.sha256()
        if have:
            with part.open("rb") as stream:
                while data := stream.read(1 << 20):
                    digest.update(data)
        with part.open("ab") as out:
            if have < file.bytes:
                for data in store.chunks(file.name, have):
                    out.write(data)
                    digest.update(data)
                    have += len(data)
                    progress(base + min(have, file.bytes), total, file.name)
                    if have > file.bytes:
                        break
        if have == file.bytes and digest.hexdigest() == file.sha256:
            part.replace(target)
            return
    part.unlink(missing_ok=True)
    what = "another checksum" if have == file.bytes else f"{have:,} bytes instead of {file.bytes:,}"
    raise DataError(f"{store.address(file.name)!r} is damaged: it has {what}; write the set again")


def check_fetched(files: Sequence[ShardFile], folder: Path) -> list[Checked]:
    """Those of the files that were fetched, compared with their checksums."""
    fetched = [(folder / file.name, file) for file in files if (folder / file.name).exists()]
    return [Checked(str(path), "ok" if _is_whole(path, file) else "damaged") for path, file in fetched]


def drop_damaged(files: Sequence[ShardFile], folder: Path) -> bool:
    """Remove fetched files that are no longer what was fetched, so that they are fetched again; True if any."""
    damaged = [Path(checked.file) for checked in check_fetched(files, folder) if checked.state == "damaged"]
    for path in damaged:
        path.unlink(missing_ok=True)
    return bool(damaged)


def _is_whole(path: Path, file: ShardFile) -> bool:
    try:
        return sha256_of(path) == file.sha256
    except OSError:
        return False

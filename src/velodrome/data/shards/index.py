"""The index of a set of shards: what it holds, file by file. It is written last, so what has one is whole.

Its files are downloaded one by one: each is complete and verified under its name, and resumed where it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from velodrome.data import cache
from velodrome.data.base import Checked, DataError, Progress
from velodrome.data.examples import ChannelStatistics
from velodrome.data.storage.store import Store
from velodrome.files import sha256_of
from velodrome.printable import LONGEST_LINE, shown

INDEX = "index.json"
SCHEMA = 1
PartName = Literal["train", "validation", "test"]
PARTS: tuple[PartName, ...] = get_args(PartName)
ENCODINGS = ("png", "jpeg", "raw")
_LARGEST_INDEX = 64 << 20
#: Fields that sets of earlier versions do not have; left out where there is nothing to say.
_OPTIONAL = ("statistics", "overlaps")
_MOST_OVERLAPS = 10
ENDING = ".tfrecord"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.tfrecord")
_OURS = re.compile(r"[A-Za-z0-9_-]+-(train|validation|test)-[0-9]{5}-of-[0-9]{5}(-v[0-9]+)?\.tfrecord")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ShardFile:
    """One TFRecord file. Of a part with n files, the k-th holds the examples k, k + n, k + 2n…"""

    name: str
    examples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """What is known of a set without opening its files."""

    name: str
    title: str
    licence: str
    homepage: str
    classes: int
    class_names: tuple[str, ...]
    #: Height, width, channels.
    shape: tuple[int, int, int]
    encoding: str
    #: A pixel times this is between 0 and 1.
    scale: float
    #: What divided the parts.
    seed: int
    validation: float
    parts: dict[PartName, tuple[ShardFile, ...]]
    #: Of the training part, before it was encoded: a worker that has only some of its files needs them.
    statistics: ChannelStatistics | None = None
    #: What was found about images that occur twice, as sentences.
    overlaps: tuple[str, ...] = ()

    def files(self, part: PartName) -> tuple[ShardFile, ...]:
        return self.parts.get(part, ())

    def examples(self, part: PartName) -> int:
        return sum(file.examples for file in self.files(part))

    @property
    def bytes(self) -> int:
        return sum(file.bytes for files in self.parts.values() for file in files)

    @property
    def key(self) -> str:
        """Changes whenever anything in the set does."""
        return hashlib.sha256(self.as_json().encode()).hexdigest()

    def as_json(self) -> str:
        fields = {name: value for name, value in asdict(self).items() if value or name not in _OPTIONAL}
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
        return parse_index(json.loads(store.read(INDEX, length=_LARGEST_INDEX)))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        text = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{where!r} is not a usable index of shards: {text}") from None


def parse_index(fields: dict[str, Any]) -> Index:
    """Everything is looked at, because files of others are named in it."""
    if fields["schema"] != SCHEMA:
        raise ValueError(f"its schema is {fields['schema']!r}, and this version of Velodrome reads {SCHEMA}")
    parts: dict[PartName, tuple[ShardFile, ...]] = {}
    for part, files in fields["parts"].items():
        if part not in PARTS:
            raise ValueError(f"it has a part {part!r}")
        parts[part] = tuple(
            ShardFile(str(file["name"]), _count(file["examples"]), _count(file["bytes"]), _sha256(file["sha256"]))
            for file in files
        )
        _check_dealing(part, parts[part])
    names = [file.name for files in parts.values() for file in files]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a shard")
    if len(set(names)) != len(names):
        raise ValueError("it names a file twice")
    height, width, channels = (_count(number) for number in fields["shape"])
    index = Index(
        name=str(fields["name"]), title=str(fields["title"]), licence=str(fields["licence"]),
        homepage=str(fields["homepage"]), classes=_count(fields["classes"]),
        class_names=tuple(map(str, fields["class_names"])), shape=(height, width, channels),
        encoding=str(fields["encoding"]), scale=float(fields["scale"]), seed=_count(fields["seed"]),
        validation=float(fields["validation"]), parts=parts, statistics=_statistics(fields.get("statistics"), channels),
        overlaps=tuple(shown(note, LONGEST_LINE) for note in fields.get("overlaps", ())[:_MOST_OVERLAPS]),
    )
    if index.encoding not in ENCODINGS:
        raise ValueError(f"its encoding is {index.encoding!r}; known are {', '.join(ENCODINGS)}")
    if not index.classes or not all(index.shape) or height * width * channels > 1 << 30:
        raise ValueError(f"it speaks of {index.classes} classes and images of shape {index.shape}")
    if index.class_names and len(index.class_names) != index.classes:
        raise ValueError(f"it has {index.classes} classes and {len(index.class_names)} names of classes")
    if not 0 < index.scale <= 1:  # not true of NaN, either
        raise ValueError(f"its scale is {index.scale}, and no number above 0 and up to 1")
    if not 0 <= index.validation < 1:
        raise ValueError(f"its fraction for validation is {index.validation}")
    return index


def _statistics(fields: Any, channels: int) -> ChannelStatistics | None:
    """Mean and standard deviation per channel; sets of earlier versions have none."""
    if fields is None:
        return None
    rows = [tuple(float(number) for number in fields[name]) for name in ("mean", "deviation")]
    if any(len(row) != channels or not all(0 <= number <= 255 for number in row) for row in rows):
        raise ValueError(f"its statistics are not those of {channels} channels of bytes")
    return ChannelStatistics(*rows)


def _sha256(text: Any) -> str:
    if not isinstance(text, str) or not _SHA256.fullmatch(text):
        raise ValueError(f"{shown(text)!r} is not a SHA-256 checksum")
    return text


def _count(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 53:
        raise ValueError(f"{number!r} is no count")
    return number


def _check_dealing(part: str, files: tuple[ShardFile, ...]) -> None:
    """Examples are distributed round-robin: file sizes differ by one at most, and never increase from file to file."""
    counts = [file.examples for file in files]
    total = sum(counts)
    if counts != [len(range(place, total, len(counts))) for place in range(len(counts))]:
        raise ValueError(f"the examples of part {part!r} are not distributed evenly over its files")


def fetch(store: Store, files: Sequence[ShardFile], folder: Path, progress: Progress | None) -> list[Path]:
    """Paths of the files below a folder that belongs to this set only.

    A file is under its name only when its checksum was right. Processes that want different files do not wait for
    each other; those that want the same one do.
    """
    total, done = sum(file.bytes for file in files), 0
    try:
        for file in files:
            target = folder / file.name
            if not _is_there(target, file):
                # A process that waited here may find the work done.
                with cache.exclusive(folder / f".{file.name}.lock", also=_part_of(target)):
                    if not _is_there(target, file):
                        _download(store, file, target, progress, done, total)
            done += file.bytes
            if progress:
                progress(done, total, file.name)
    except OSError as error:
        raise DataError(
            f"the shards cannot be stored in {folder} ({error.strerror or error}): free some space, or set "
            "VELODROME_CACHE to a folder that can be written"
        ) from error
    return [folder / file.name for file in files]


def _is_there(target: Path, file: ShardFile) -> bool:
    return target.exists() and target.stat().st_size == file.bytes


def _part_of(target: Path) -> Path:
    """Where a file is until it is complete."""
    return target.with_name(f".{target.name}.part")


def _download(store: Store, file: ShardFile, target: Path, progress: Progress | None, base: int, total: int) -> None:
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
                    if progress:
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

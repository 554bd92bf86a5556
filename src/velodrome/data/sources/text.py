"""The user's own text: `text:` and a folder of `.txt` files, or one file. A line is a sentence of words.

Files named train, validation and test are these parts; otherwise the lines are divided 90 : 5 : 5, in their order.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from velodrome.data import cache
from velodrome.data.base import BadData, Faults, NDArray, Progress, WrongData, naming, np, refuse
from velodrome.data.examples import Text
from velodrome.data.source import (
    CachedSource,
    Description,
    check_exists,
    check_options,
    follows_links,
    notes_of,
    split_options,
)
from velodrome.data.split import PART_NAMES, PARTS, TEST, TRAIN, VALIDATION
from velodrome.data.storage.trees import File, FolderTree, Lost
from velodrome.errors import bytes_text, shown
from velodrome.machine import process_memory

#: Words in addition to `<eos>` and `<unk>`.
VOCABULARY = 10_000
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: Bytes of memory for a byte of text while its words are counted: between 8 and 20, by the length of the words.
_SWELL = 20


def _source(rest: str, bad_data: BadData) -> TextFolder:
    """The data set that `text:rest` names."""
    name = f"text:{rest}"
    path, options = split_options(rest)
    check_exists(path)
    check_options(options, ("links", "encoding"))
    return TextFolder(
        name, bad_data, path, follow_links=follows_links(options), encoding=_encoding(options)
    )


def _encoding(options: dict[str, str]) -> str:
    """The encoding of the files; UTF-8 with or without a byte order mark by default."""
    chosen = options.get("encoding", "utf-8")
    try:
        b"word".decode(chosen, "replace")
    except (LookupError, ValueError):
        raise WrongData(f"no encoding {chosen!r}; write for example encoding=latin-1, cp1252 or utf-16") from None
    return "utf-8-sig" if chosen.lower().replace("_", "-") in ("utf-8", "utf8") else chosen


@dataclass(frozen=True)
class TextFolder(CachedSource):
    path: Path
    follow_links: bool = False
    encoding: str = "utf-8-sig"

    @property
    def source(self) -> str:
        return repr(("text", str(self.path.resolve()), self.follow_links, self.encoding))

    def _files(self) -> tuple[FolderTree, list[File], list[Lost]]:
        """The texts, and what may have been one and cannot be read."""
        if not self.path.is_dir():
            about = self.path.stat()
            return FolderTree(self.path.parent), [File.of(self.path.name, self.path, about)], []
        tree = FolderTree(self.path, follow_links=self.follow_links)
        files = [file for file in tree.files if file.name.lower().endswith(".txt")]
        lost = [entry for entry in tree.lost if PurePosixPath(entry.name).suffix.lower() in ("", ".txt")]
        if not files:
            with naming(self.name):
                raise WrongData(f"no .txt files there that can be read{_faults_of(lost).because}")
        return tree, files, lost

    def key(self) -> str:
        _, files, lost = self._files()
        return cache.key_of(("text", VOCABULARY, *lost), ((file.name, file.bytes, file.stamp) for file in files))

    def describe(self, validation: float) -> Description:
        size = sum(file.bytes for file in self._files()[1])
        about = Description(name=self.name, title="your own text", kind="text", bytes=size)
        if (kept := self.kept()) is None:
            return about
        train, validated, test = kept.about["sizes"]
        return replace(about, train=train, validation=validated, test=test, classes=len(kept.about["vocabulary"]),
                       notes=notes_of(kept.about))

    def load_text(self) -> Text:
        kept = self.decoded()
        train, validation, test = (kept.array(part) for part in PARTS)
        return Text(self.name, train, validation, test, list(kept.about["vocabulary"]), notes=notes_of(kept.about))

    def make(self, folder: Path, faults: Faults, progress: Progress) -> dict[str, Any]:
        notes = list[str]()
        lines = self._lines(faults, notes, progress)
        if self.bad_data == "fail":
            refuse(self.name, faults.all())  # nothing is kept that a repair which changes no file would not renew
        if not lines[TRAIN]:
            raise WrongData("there is no text to train on")
        vocabulary = vocabulary_of(lines[TRAIN], most=VOCABULARY)
        sizes = []
        for which, part in enumerate(PARTS):
            row = numbered(lines[which], vocabulary)
            np.save(folder / f"{part}.npy", row)
            sizes.append(len(row))
        return {"vocabulary": vocabulary, "sizes": sizes, "notes": notes}

    def _lines(self, faults: Faults, notes: list[str], progress: Progress) -> dict[int, list[list[str]]]:
        """The lines of each part as words; empty lines are left out."""
        tree, files, lost = self._files()
        faults.take(_faults_of(lost).all())
        total, done = sum(file.bytes for file in files), 0
        if total * _SWELL > (free := process_memory()):
            raise WrongData(
                f"{bytes_text(total)} of text take about {bytes_text(total * _SWELL)} of "
                f"memory as words, but only {bytes_text(free)} are free: take a part of it"
            )
        parts = {file.name: _part_of(file.name) for file in files}
        by_name = TRAIN in parts.values() and {VALIDATION, TEST} & set(parts.values())
        lines_of: dict[int, list[list[str]]] = {TRAIN: [], VALIDATION: [], TEST: []}
        for file in files:
            lines = _read(tree, file, self.encoding, faults)
            which = parts[file.name] if by_name else TRAIN
            if which is None:
                faults.add("files other than train, validation and test", file.name)
            else:
                lines_of[which] += [line for line in lines if line]
            done += file.bytes
            progress(done, total, f"reading {self.name}")
        missing = [part for which, part in enumerate(PARTS) if not lines_of[which]]
        if missing:
            _cut(lines_of)
        if by_name and missing:
            notes.append(
                f"there are no lines for {' and '.join(missing)}: 5 % of the training lines, from their end, are used "
                "for each"
            )
        elif len(files) > 1 and not by_name:
            some = ", ".join(shown(file.name) for file in files[:3]) + (", …" if len(files) > 3 else "")
            notes.append(
                f"no files are named train, and validation or test, so the lines of all {len(files):,} ({some}) were "
                "divided 90 : 5 : 5, in the order of the names"
            )
        return lines_of


def _faults_of(lost: list[Lost]) -> Faults:
    faults = Faults()
    for entry in lost:
        faults.add(entry.what, entry.name, entry.reason)
    return faults


#: A line that holds something, with the line breaks of `str.splitlines`.
_LINE = re.compile("[^\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]+")


def _read(tree: FolderTree, file: File, encoding: str, faults: Faults) -> list[list[str]]:
    """The words of each line of a file that has some; none of one that cannot be read, which is a fault."""
    try:
        with tree.open(file.name) as stream:
            payload = stream.read()
        # One at a time: a list of all lines takes many times the memory of a file of short ones.
        return [words for line in _LINE.finditer(payload.decode(encoding)) if (words := line[0].split())]
    except UnicodeError as error:
        what = f"files that are not {encoding}" if encoding != "utf-8-sig" else (
            "files that are not UTF-8 (add ?encoding=latin-1, or whichever encoding they use, to the name)"
        )
        where = f"byte {error.start}" if isinstance(error, UnicodeDecodeError) else str(error)
        faults.add(what, file.name, "it begins as UTF-16 does" if payload.startswith(_UTF16) else where)
    except OSError as error:
        faults.add("files that cannot be read", file.name, error.strerror or str(error))
    return []


def _part_of(name: str) -> int | None:
    """The part a file belongs to by its name or its folder's: `train.txt`, `ptb.valid.txt`, `test/book.txt`."""
    path = PurePosixPath(name)
    words = [*(piece.lower() for piece in path.parts[:-1]), *path.name.lower().split(".")]
    return next((PART_NAMES[word] for word in words if word in PART_NAMES), None)


def _cut(lines_of: dict[int, list[list[str]]]) -> None:
    """Take what is missing from the end of training: a twentieth of its lines for validation, the last for test."""
    lines = lines_of[TRAIN]
    share = max(1, len(lines) // 20) if len(lines) > 2 else 0
    for which in (TEST, VALIDATION):
        if not lines_of[which] and share:
            lines_of[which] = lines[len(lines) - share :]
            del lines[len(lines) - share :]


SCHEMES = {"text": _source}


EOS, UNKNOWN = "<eos>", "<unk>"


def vocabulary_of(lines: Iterable[Sequence[str]], *, most: int | None) -> list[str]:
    """`<eos>`, `<unk>` and the words, the most frequent first and equally frequent ones by the alphabet.

    With `most`, only so many words in addition to these two are kept.
    """
    ends = 0
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
        ends += 1
    counts[EOS] += ends
    unknown = counts.pop(UNKNOWN, 0)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if most is not None:
        words = [EOS, *[word for word in words if word != EOS][:most]]
        unknown = max(unknown, 1)
    if unknown:
        counts[UNKNOWN] = unknown
        words = sorted({*words, UNKNOWN}, key=lambda word: (-counts[word], word))
    return words


def numbered(lines: Iterable[Sequence[str]], vocabulary: Sequence[str]) -> NDArray[np.int32]:
    """Lines as numbers of words in the vocabulary, each ended by `<eos>`; a word it lacks becomes `<unk>`."""
    places = {word: place for place, word in enumerate(vocabulary)}
    end, unknown = places[EOS], places.get(UNKNOWN, -1)
    rows = chain.from_iterable(chain((places.get(word, unknown) for word in line), (end,)) for line in lines)
    numbers = np.fromiter(rows, np.int32)
    if (numbers < 0).any():
        raise ValueError("a word is not in the vocabulary, which has no token for unknown words")
    return numbers

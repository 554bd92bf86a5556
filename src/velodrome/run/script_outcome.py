"""What a script of the user's own adds to the result of a run, what it did not report, and how to read it from what it
printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from velodrome.events.models import Pace, ResultEvent, Warmup
from velodrome.events.result import Throughput
from velodrome.figures import less_is_better, named
from velodrome.job.job import Job
from velodrome.job.script import fields_in
from velodrome.judge.caveats import PRINTED, untested

#: Fields of a result that a script decides itself: nothing is known of them.
UNKNOWN = ("batch_size", "batch_scope", "batch_of_step", "optimizer", "learning_rate")


#: Bytes at the end of a log that are searched for a figure.
_TAIL = 200_000
#: As many lines of them, as many characters of each, and of what stands before a number.
_MOST_LINES, _LONGEST_LINE, _LONGEST_NAME = 300, 400, 60
_NUMBER = re.compile(r"(?<![\w.@/])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)", re.IGNORECASE)
#: Words that may be the name of a number, and what stands between.
_NAME = re.compile(r"([A-Za-z][\w/@-]*(?:[ -][A-Za-z][\w/@-]*){0,2})([\"']?\s*[:=]?\s*)$")
#: What follows a number that is a part of another one, and the per cent that are printed with it.
_PART = re.compile(r"\s*/\s*\d+(?:\s*\(\s*(\d+(?:\.\d+)?)\s*%)?")
#: A line that has figures of a validation by name, besides its loss, has those of training without one.
_VALIDATES = re.compile(r"(?<![A-Za-z])(?:val|valid|validation|dev|eval)[\W_](?!loss)", re.IGNORECASE)
_EPOCH = re.compile(r"(epoch\W{0,3})(\d+)", re.IGNORECASE)
_FAR = re.compile(r"\b(acc(?:uracy)?\b.*): (\d+(?:\.\d+)?) ?(%?)$", re.IGNORECASE)
_FIGURES = frozenset({"accuracy", "f1", "auc", "precision", "recall", "map", "bleu", "iou", "score"})


def pace_of_all(paces: Sequence[Pace]) -> Pace | None:
    """The pace of all processes together: their examples add up, and the slowest one decides how long it took."""
    counted = [pace for pace in paces if pace.examples] or list(paces)
    if not counted:
        return None
    warmup = Warmup(
        steps=max(pace.warmup.steps for pace in counted), examples=sum(pace.warmup.examples for pace in counted),
        seconds=max(pace.warmup.seconds for pace in counted),
    )
    return Pace(
        seconds=max(pace.seconds for pace in counted), examples=sum(pace.examples for pace in counted),
        steps=max(pace.steps for pace in counted), warmup=warmup,
    )


def of_script(
    job: Job, fields: dict[str, Any], final: ResultEvent | None, *, throughput: Throughput, log: Path
) -> dict[str, Any]:
    """The fields of a result without those that are not known of a script, and with what it did not report; `log` has
    what the first rank printed."""
    unknown = set(UNKNOWN) - fields_in(job.script_args)
    found = {name: value for name, value in fields.items() if name not in unknown}
    return found | {"script": job.script, "not_reported": list(_not_reported(fields, final, throughput, log))}


def _not_reported(
    fields: dict[str, Any], final: ResultEvent | None, throughput: Throughput, log: Path
) -> Iterator[str]:
    if not fields["history"]:
        yield "training: when it began, and how long it took without start-up and evaluation, is unknown"
    if throughput.examples_per_second is None:
        yield "examples: throughput is unknown"
    if final is None or final.steps is None:
        yield "steps: their number is unknown"
    if fields["test"] is None:
        pattern = pattern_for(log)
        how = f"{PRINTED}{pattern} reads one" if pattern else \
            "; report one by velodrome.log, or print one and read it by --read"
        yield f"{untested(fields['history'] or ())}{how}"


def pattern_for(log: Path) -> str:
    """The option that reads a figure from a line that a script printed, the last and most telling one; empty if there
    is none."""
    text = ""
    with suppress(OSError), log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL))
        text = stream.read(_TAIL).decode(errors="replace")
    best: tuple[int, str] = (0, "")
    for line in reversed(text.splitlines()[-_MOST_LINES:]):
        for rank, pattern in _patterns(line[:_LONGEST_LINE]):
            if rank > best[0] and re.search(pattern, line):
                best = rank, pattern
    return f"--read {shlex.quote(best[1])}" if best[1] else ""


def _patterns(line: str) -> Iterator[tuple[int, str]]:
    """Expressions for the named numbers of a line, and how telling each of them is."""
    if (far := _FAR.search(line)) is not None:  # accuracy of the network on the 10000 test images: 91 %
        percent = "_percent" if far[3] or float(far[2]) > 1 else ""
        yield 4, f"{far[1].split(' ')[0]}.*: (?P<test_accuracy{percent}>[0-9.]+)"
    for number in _NUMBER.finditer(line):
        before = _NAME.search(line, max(0, number.start() - _LONGEST_NAME), number.start())
        if before is None:
            continue
        words = before[1].split(" ")
        # The longest name that stands for a figure: `val acc` of `so val acc`.
        for name in (" ".join(words[place:]) for place in range(len(words))):
            about = named(name)
            if about.metric.lower() not in _FIGURES and not less_is_better(about.metric):
                continue
            part = _PART.match(line, number.end())
            if part is not None and part[1] is None:
                break  # 9 of 9/10
            value, is_accuracy = float(part[1] if part else number[0]), about.metric == "accuracy"
            is_percent = part is not None or line[number.end() :].lstrip().startswith("%")
            percent = "_percent" if is_percent or (is_accuracy and value > 1) else ""
            trains = less_is_better(about.metric) or _VALIDATES.search(line) is not None
            split = about.split or ("train" if trains else "test")
            group = f"{split}_{re.sub(r'[^A-Za-z0-9]+', '_', about.metric)}{percent}"
            head, epoch = line[: before.start()], ""
            if (found := _EPOCH.search(head)) and split != "test":
                epoch = f"{_literal(found[1])}(?P<epoch>[0-9]+).*"
            telling = {"test": 3, "validation": 2, "train": 1}[split] + 3 * (not less_is_better(about.metric))
            digits = "[-+0-9.e]+" if re.search("[-+e]", number[0]) else "[0-9.]+"
            apart = r"[^(]*\([ ]*" if part else ""
            yield telling, f"{epoch}{_literal(name + before[2])}{apart}(?P<{group}>{digits})"
            break


def _literal(text: str) -> str:
    return re.sub(r"\s{2,}|\t", r"\\s+", re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text))

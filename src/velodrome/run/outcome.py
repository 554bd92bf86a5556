"""How a run ended, computed from its events: the result that is stored, printed and compared; of a script of the user's
own also what it did not report, and how to read that from what it printed."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from velodrome.catalog.registry import engine_of, strategy_of
from velodrome.clusters.plan import Plan
from velodrome.events.fields import SCHEMA_VERSION, DataRecord
from velodrome.events.models import EpochEvent, ResultEvent
from velodrome.events.result import Throughput
from velodrome.figures import less_is_better, named
from velodrome.job.check_optimization import batch_of_step, scale_of_rate
from velodrome.job.job import Job
from velodrome.job.result import Ended, Result
from velodrome.job.script import fields_in
from velodrome.judge.caveats import PRINTED, untested
from velodrome.machine import describe_machine
from velodrome.run.samples import throughput
from velodrome.run.state import Failure, RunState
from velodrome.tasks.registry import task_of

#: Fields of a job that its result repeats.
_REQUESTED = (
    "dataset", "model", "engine", "strategy", "workers", "servers", "batch_size", "batch_scope", "optimizer", "seed",
    "target",
)


def versions(plan: Plan) -> dict[str, str]:
    """Versions of the packages that take part, as installed on this machine."""
    installed = {"velodrome": metadata.version("velodrome"), "python": platform.python_version()}
    packages = [*engine_of(plan.job).packages, "numpy"]
    if plan.job.strategy == "allreduce":
        packages += ["mpi4py", "mpich"]
    for package in packages:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def _test(job: Job, final: ResultEvent | None) -> dict[str, Any] | None:
    summary = task_of(job).summary(final.test.as_json() if final else None)
    if final is None or summary is None:
        return summary
    answers = {"answers": final.test_answers, "fingerprint": final.test_fingerprint}
    return summary | {name: value for name, value in answers.items() if value is not None}


def _history_row(event: EpochEvent, job: Job) -> dict[str, Any]:
    return {
        "epoch": event.epoch,
        **task_of(job).history(train=event.train.as_json(), validation=event.validation.as_json()),
        **({} if event.learning_rate is None else {"learning_rate": event.learning_rate}),
        "seconds": event.seconds,
        "evaluate_seconds": event.evaluate_seconds,
    }


def make_result(
    plan: Plan, state: RunState, path: str, status: Ended, *, ended: float, failure: Failure | None = None,
    launcher: str = "local",
) -> Result:
    """Compute the result of a run from the state that its events add up to; `path` is its folder."""
    job, task = plan.job, task_of(plan.job)
    rate = throughput(state.pace, task.examples_per_step(job))
    fields = {
        **_as_requested(plan),
        "path": path,
        "status": status,
        "launcher": launcher,
        "epochs": len(state.epochs),
        "reached_target": state.final and state.final.reached_target,
        "steps": state.final and state.final.steps,
        "parameters": state.final and state.final.parameters,
        "test": _test(job, state.final),
        "history": [_history_row(epoch.event, job) for epoch in state.epochs.values()],
        "seconds": state.seconds(ended),
        "throughput": rate,
        "nodes": [process.node() for process in state.processes_of(plan)],
        "hosts": [host.host(state.hosts.values()) for host in state.hosts.values()],
        "versions": {**versions(plan), **state.versions},
        "machine": describe_machine(),
        "started": state.started,
        "ended": ended,
        **{name: value for name, value in _where_known(plan, state, failure).items() if value is not None},
    }
    if job.script is not None:
        log = Path(path) / "logs" / f"{plan.chief.file_name}.log"
        fields = of_script(job, fields, state.final, throughput=rate, log=log)
    return Result.model_validate({**fields, "folder": Path(path)})


def _as_requested(plan: Plan) -> dict[str, Any]:
    job, strategy = plan.job, strategy_of(plan.job)
    return {
        "schema": SCHEMA_VERSION,
        "run": plan.run,
        "task": task_of(job).name,
        "consistency": str(strategy.consistency),
        "batch_of_step": batch_of_step(job, strategy),
        **{name: getattr(job, name) for name in _REQUESTED},
    }


def _where_known(plan: Plan, state: RunState, failure: Failure | None) -> dict[str, Any]:
    """Fields that a result leaves out where they are None."""
    job, final, data = plan.job, state.final, state.data
    rate, confusion = job.learning_rate, final and final.confusion
    return {
        "learning_rate": rate,
        "effective_rate": None if rate is None else rate * scale_of_rate(job, strategy_of(job)),
        "implementation": final and final.implementation,
        "pixels": final and final.pixels,
        "data": data and data.model_dump(include=set(DataRecord.model_fields), exclude_none=True),
        "cluster": dict(plan.facts) or None,
        "metrics": (final and final.metrics) or None,
        "shares": state.shares,
        "confusion": confusion,
        "class_names": None if final is None or confusion is None else final.class_names,
        "staleness": state.staleness,
        "faults": state.fault_records() or None,
        "warnings": state.warnings() or None,
        "error": failure and failure.as_json(),
    }


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
#: Words in the names of figures of which more is better.
_FIGURES = frozenset({
    "accuracy", "f1", "auc", "auroc", "precision", "recall", "map", "bleu", "rouge", "iou", "miou", "dice", "r2", "mrr",
    "ndcg", "score", "top3", "top5", "top10",
})


def of_script(
    job: Job, fields: dict[str, Any], final: ResultEvent | None, *, throughput: Throughput, log: Path
) -> dict[str, Any]:
    """The fields of a result without those that are not known of a script, and with what it did not report; `log` has
    what the first rank printed."""
    unknown = set(UNKNOWN) - fields_in(job.script_args)
    known = {name: value for name, value in fields.items() if name not in unknown}
    return known | {"script": job.script, "not_reported": list(_not_reported(fields, final, throughput, log))}


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
        yield f"{untested([dict(epoch) for epoch in fields['history'] or ()])}{how}"


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
            parts = {about.metric.lower(), *(set(re.findall("[a-z0-9]+", about.metric.lower())) - {"accuracy"})}
            if _FIGURES.isdisjoint(parts) and not less_is_better(about.metric):
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
            if (epoch_match := _EPOCH.search(head)) and split != "test":
                epoch = f"{_literal(epoch_match[1])}(?P<epoch>[0-9]+).*"
            telling = {"test": 3, "validation": 2, "train": 1}[split] + 3 * (not less_is_better(about.metric))
            digits = "[-+0-9.e]+" if re.search("[-+e]", number[0]) else "[0-9.]+"
            apart = r"[^(]*\([ ]*" if part else ""
            yield telling, f"{epoch}{_literal(name + before[2])}{apart}(?P<{group}>{digits})"
            break


def _literal(text: str) -> str:
    return re.sub(r"\s{2,}|\t", r"\\s+", re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text))

"""Whether the numbers of a result agree with one another, with the job and with the events of the run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from velodrome.events.fields import Counts
from velodrome.events.models import EpochEvent, ResultEvent
from velodrome.events.result import RunResult, TestScore
from velodrome.tasks.registry import task_of_result

_AS_REQUESTED = ("dataset", "model", "engine", "strategy", "workers", "batch_size", "seed")


def contradictions(
    result: RunResult, job: Mapping[str, Any], epochs: Mapping[int, EpochEvent], final: ResultEvent | None
) -> Iterator[str]:
    """Yield everything that does not add up, as sentences."""
    for name in _AS_REQUESTED:
        value = getattr(result, name)
        if name in job and value is not None and job[name] != value:
            yield f"result.json has {name} {value!r}, and job.yaml {job[name]!r}"
    yield from (f"result.json: {problem}" for problem in _within(result, job))
    yield from _test_against_event(result.test, final)
    yield from _history_against_events(result, epochs)
    yield from _other_metrics(result, epochs, final)


def _near(value: float, other: float, relative: float = 1e-6, absolute: float = 1e-9) -> bool:
    return math.isclose(value, other, rel_tol=relative, abs_tol=absolute)


def _within(result: RunResult, job: Mapping[str, Any]) -> Iterator[str]:
    """Yield what contradicts itself within the result."""
    if result.test is not None:
        yield from _score(result.test)
    epochs = [row.epoch for row in result.history]
    if epochs != sorted(set(epochs)):
        yield f"the epochs of history are {epochs}, and should count up"
    if result.epochs != len(epochs):
        yield f"epochs is {result.epochs}, and history has {len(epochs)}"
    train, of_epochs = result.seconds.train, sum(row.seconds for row in result.history)
    if train is not None and not _near(train, of_epochs, 1e-3, 1e-2):
        yield f"seconds.train {train} is not the sum of history"
    if result.ended < result.started:
        yield "it ended before it started"
    if result.test and result.confusion:
        yield from _confusion(result.confusion, result.test, result.class_names or [])
    yield from _pace(result, job)


def _pace(result: RunResult, job: Mapping[str, Any]) -> Iterator[str]:
    rate, batches = result.throughput.examples_per_second, result.throughput.batches_per_second
    if not (rate and batches and result.batch_of_step):
        return
    field = task_of_result(result).row_field
    examples_per_row = job.get(field) if field else 1
    if not isinstance(examples_per_row, int) or examples_per_row < 1:
        return
    batch = result.batch_of_step * examples_per_row
    if not _near(rate / batch, batches, 1e-3, 1e-3):
        yield f"{batches} batches per second of {batch} are not {rate} examples per second"


def _score(test: TestScore) -> Iterator[str]:
    counted = test.correct is not None and test.total is not None and test.correct / test.total
    if test.accuracy is not None and counted is not False and not _near(test.accuracy, counted):
        yield f"test accuracy {test.accuracy} is not {test.correct} of {test.total}"
    if test.answers is not None:
        yield from _answers(test.answers, test)
    perplexity, loss = test.perplexity, test.loss
    if perplexity is not None and loss is not None and not _near(perplexity, math.exp(min(loss, 700.0)), 1e-4):
        yield f"test perplexity {perplexity} is not exp of the loss {loss}"


def _answers(answers: str, test: TestScore) -> Iterator[str]:
    from velodrome.tasks.correctness_bits import decode

    try:
        correct = int(decode(answers, test.total or 0).sum())
    except ValueError as error:
        yield f"test: {error}"
        return
    if correct != test.correct:
        yield f"the answers have {correct} correct, and test {test.correct} of {test.total}"


def _confusion(confusion: Sequence[Sequence[int]], test: TestScore, names: Sequence[str]) -> Iterator[str]:
    if any(len(row) != len(confusion) for row in confusion):
        yield "the confusion matrix is not square"
        return
    total, correct = sum(map(sum, confusion)), sum(row[place] for place, row in enumerate(confusion))
    if total != test.total or correct != test.correct:
        yield f"the confusion matrix counts {correct} of {total}, and test {test.correct} of {test.total}"
    if names and len(names) != len(confusion):
        yield f"class_names are not the names of {len(confusion)} classes"


def _test_against_event(test: TestScore | None, final: ResultEvent | None) -> Iterator[str]:
    if test is None:
        return
    if final is None:
        yield "result.json has a test, and no event reports a result"
        return
    counted = final.test
    if counted.reported is not None:
        yield from (f"result.json has test {name} {value!r}, and the events {counted.reported.get(name)!r}"
                    for name, value in test.as_json().items()
                    if name != "total" and value != counted.reported.get(name))
        if (test.total or 0) != counted.total:
            yield f"result.json has {test.total} examples in test, and the events {counted.total}"
        return
    if counted.total != test.total or test.correct not in (None, counted.correct):
        correct = "no count of correct ones" if counted.correct is None else counted.correct
        yield (f"result.json has {test.correct} of {test.total} in test, and the events {correct} of {counted.total}")


def _history_against_events(result: RunResult, epochs: Mapping[int, EpochEvent]) -> Iterator[str]:
    for row in result.history:
        event = epochs.get(row.epoch)
        if event is None:
            yield f"epoch {row.epoch} is in result.json and not in the events"
            continue
        parts = {"train": (row.train_accuracy, event.train), "validation": (row.validation_accuracy, event.validation)}
        for part, (accuracy, counts) in parts.items():
            if counts.reported is not None:
                if accuracy != counts.reported.get("accuracy"):
                    yield f"epoch {row.epoch}: {part}_accuracy is {accuracy}, and the event has another one"
            elif accuracy is not None:
                yield from (f"epoch {row.epoch}: {part}_{problem}" for problem in _accuracy(accuracy, counts))


def _other_metrics(
    result: RunResult, epochs: Mapping[int, EpochEvent], final: ResultEvent | None
) -> Iterator[str]:
    """Yield metrics of other tasks that do not follow from the counts of the events."""
    stored = result.as_json()
    task = task_of_result(result)
    if task.name in ("classification", "language-model"):
        return
    rows = {row["epoch"]: row for row in stored["history"]}
    for number, event in epochs.items():
        counted = task.history(train=event.train.as_json(), validation=event.validation.as_json())
        yield from (f"epoch {number}: {words}" for words in _unequal(rows.get(number, {}), counted))
    if final is not None and stored.get("test"):
        yield from (f"test {words}" for words in _unequal(stored["test"], task.summary(final.test.as_json()) or {}))


def _unequal(stored: Mapping[str, Any], counted: Mapping[str, Any]) -> Iterator[str]:
    for name, value in counted.items():
        reported = stored.get(name)
        same = reported == value if reported is None or value is None else _near(reported, value)
        if stored and not same:
            yield f"{name} is {reported} in result.json, and {value} by the counts of the events"


def _accuracy(accuracy: float, counts: Counts) -> Iterator[str]:
    if counts.correct is None:
        yield f"accuracy is {accuracy}, and the event counts no correct ones"
    elif counts.total and not _near(accuracy, counts.correct / counts.total):
        yield f"accuracy {accuracy} is not {counts.correct} of {counts.total}"

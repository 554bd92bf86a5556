"""What TensorBoard shows of a run, written by the controller without any framework: scalars from the events and, at
the end, the session that the HParams tab compares, in its own folder so that resource curves are no columns there."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from velodrome.events.fields import Counts
from velodrome.events.models import EpochEvent, Event, ResourcesEvent, ResultEvent
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.judge.configuration import NOT_CONFIGURED, text_of
from velodrome.tasks.registry import task_of, task_of_result

#: The folder of the session that the HParams tab compares, within a run's `tensorboard/`.
SESSION = "hparams"


class EventFile:
    """An event file of TensorBoard, created with the first summary."""

    def __init__(self, folder: Path, began: float | None = None) -> None:
        self._folder = folder
        self._writer: Any = None
        self._stream: Any = None
        self.began = time.time() if began is None else began

    def scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        # Imported here: it takes 0.2 s, which a command that fails early should not pay.
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self.summary(step, wall_time, summary)

    def summary(self, step: int, wall_time: float, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._writer is None:
            self._folder.mkdir(exist_ok=True)  # never the run's own folder: it may have been removed
            path = self._folder / f"events.out.tfevents.{int(self.began)}.velodrome"
            self._stream = path.open("ab")
            self._writer = RecordWriter(self._stream)
            self._writer.write(Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString())
        self._writer.write(Event(wall_time=wall_time, step=step, summary=summary).SerializeToString())
        self._stream.flush()

    def close(self) -> None:
        if self._stream is not None:
            with suppress(OSError):  # a full disk is reported elsewhere
                self._stream.close()


class Scalars:
    """The curves of a run, in its `tensorboard/` folder."""

    def __init__(self, folder: Path, job: Job, began: float | None = None) -> None:
        """`began` is when the run did, by the clock of its events."""
        self._file = EventFile(folder, began)
        self._task = task_of(job)

    def take(self, event: Event) -> None:
        """Write the scalars of an event, if it has any."""
        now = event.controller_time
        if isinstance(event, EpochEvent):
            train, validation = self._curves("train", event.train), self._curves("validation", event.validation)
            self._file.scalars(event.epoch, now, {"time/epoch_seconds": event.seconds, **train, **validation})
        elif isinstance(event, ResourcesEvent):
            node = f"{event.role}-{event.rank}"
            self._file.scalars(round(now - self._file.began), now, {
                **{f"{name}/{node}": value for name, value in event.values().items()},
                f"network_bytes/{node}/in": event.network.inbound,
                f"network_bytes/{node}/out": event.network.out,
            })
        elif isinstance(event, ResultEvent) and (curves := self._curves("test", event.test)):
            self._file.scalars(len(event.history), now, curves)

    def _curves(self, part: str, counts: Counts) -> dict[str, float]:
        """Return the metrics of a part; one that is not finite is drawn as such."""
        if not counts.total and not counts.reported:
            return {}
        measured = self._task.measure(counts.as_json())
        return {f"{name}/{part}": math.nan if value is None else value for name, value in measured.items()}

    def close(self) -> None:
        self._file.close()


def hyperparameters(job: Job) -> dict[str, float | bool | str]:
    """Return the fields that distinguish configurations, as TensorBoard can hold them: numbers, booleans and text."""
    fields: dict[str, float | bool | str] = {}
    for name, value in job.model_dump().items():
        if value is not None and name not in NOT_CONFIGURED:
            fields[name] = value if isinstance(value, bool | int | float | str) else text_of(value)
    return fields


def metrics(result: Result) -> dict[str, float]:
    """Return the final metrics by which runs are compared."""
    task, test = task_of_result(result), result.test
    values = {
        **{f"{metric.name}/test": test.value(metric.name) if test else None for metric in task.metrics},
        f"{task.metric.name}/validation":
            result.history[-1].value(f"validation_{task.metric.name}") if result.history else None,
        "throughput/examples_per_second": result.throughput.examples_per_second,
        "time/train_seconds": result.seconds.train,
        "time/total_seconds": result.seconds.total,
    }
    return {name: value for name, value in values.items() if value is not None}


def write_session(folder: Path, job: Job, result: Result) -> None:
    """Write the session of a run for the HParams tab; repetitions, which differ only in their seed, share a group."""
    from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

    parameters = hyperparameters(job)
    group = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()[:16]
    start = SessionStartInfo(group_name=f"{job.engine}/{job.strategy} {group}", start_time_secs=result.started)
    for name, value in parameters.items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, str):
            start.hparams[name].string_value = value
        else:
            start.hparams[name].number_value = value
    status = STATUS_SUCCESS if result.status == "finished" else STATUS_FAILURE
    end = SessionEndInfo(status=status, end_time_secs=result.ended)
    file = EventFile(folder / SESSION)
    try:
        file.summary(0, result.started, _plugin_summary("session_start_info", HParamsPluginData, start))
        if values := metrics(result):
            file.scalars(result.epochs, result.ended, values)
        file.summary(0, result.ended, _plugin_summary("session_end_info", HParamsPluginData, end))
    finally:
        file.close()


def _plugin_summary(name: str, data: Any, content: Any) -> Any:
    """Wrap a message of the HParams plugin in a summary: its content is the metadata, the tensor is empty."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    about = metadata.create_summary_metadata(data(**{name: content}))
    return Summary(value=[Summary.Value(tag=f"_hparams_/{name}", metadata=about, tensor=metadata.NULL_TENSOR)])

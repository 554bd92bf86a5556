"""Scalars for TensorBoard, written by the controller from the events; no framework is needed for that."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def _mean(counts: Mapping[str, Any]) -> float:
    """Loss per example; one that is not finite travels as null."""
    return math.nan if counts["loss_sum"] is None else counts["loss_sum"] / counts["total"]


class Scalars:
    """An event file in a run's `tensorboard/` folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._stream: Any = None
        self._began = time.time()

    def take(self, event: dict[str, Any]) -> None:
        """Write what an event says, if it is for a curve."""
        kind = event["kind"]
        if kind == "epoch":
            values = {"time/epoch_seconds": event["seconds"]}
            for part in ("train", "validation"):
                counts = event[part]
                if counts["total"]:
                    values[f"accuracy/{part}"] = counts["correct"] / counts["total"]
                    values[f"loss/{part}"] = _mean(counts)
            self._write(event["epoch"], event["time"], values)
        elif kind == "resources":
            node = f"{event['role']}-{event['rank']}"
            network = event["network"]
            self._write(round(event["time"] - self._began), event["time"], {
                f"cpu_percent/{node}": event["cpu_percent"],
                f"memory_bytes/{node}": event["memory_bytes"],
                f"network_bytes/{node}/in": network["in"],
                f"network_bytes/{node}/out": network["out"],
            })
        elif kind == "result" and event["test"]["total"]:
            test, step = event["test"], len(event["history"])
            self._write(step, event["time"], {"accuracy/test": test["correct"] / test["total"],
                                              "loss/test": _mean(test)})

    def _write(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        # Imported here: it takes 0.2 s, which a command that fails early should not pay.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._writer is None:
            path = self._folder / f"events.out.tfevents.{int(self._began)}.velodrome"
            self._stream = path.open("ab")
            self._writer = RecordWriter(self._stream)
            self._writer.write(Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString())
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._writer.write(Event(wall_time=wall_time, step=step, summary=summary).SerializeToString())
        self._stream.flush()

    def close(self) -> None:
        if self._stream is not None:
            with suppress(OSError):  # a full disk is told of elsewhere
                self._stream.close()

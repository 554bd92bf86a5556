"""TensorFlow's side of a task: its network, the feed of its replicas, and its parameter-server dispatcher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.engines.tensorflow.cluster import PeerMonitor
from velodrome.engines.tensorflow.flat import FlatModel
from velodrome.tasks.counts import Counts
from velodrome.tasks.examples import ExampleTask
from velodrome.worker.context import Context

if TYPE_CHECKING:
    from velodrome.engines.tensorflow.feeds import Feed
    from velodrome.engines.tensorflow.parameter_server import ParameterServer


class TensorFlowTask(ABC):
    """What the strategies need to know of a task. Each method imports what it returns, and nothing else."""

    @abstractmethod
    def network(self, context: Context) -> FlatModel:
        """The job's network with the weights that its seed decides, checked against the data."""

    @abstractmethod
    def feed(self, context: Context, ranks: range) -> Feed:
        """Where the replicas of this process, by rank, get their steps from."""

    @abstractmethod
    def dispatcher(self, context: Context, network: Any, strategy: Any, monitor: PeerMonitor) -> ParameterServer:
        """The learner in the chief of a parameter-server job."""

    def prepare_server_worker(self, context: Context) -> None:  # noqa: B027 (most have nothing to prepare)
        """In a worker of a parameter-server job, before the chief can send it closures."""


def count_scores(context: Context, part: str, counts: Counts, scores: NDArray[np.float64]) -> Counts:
    """The counts of an evaluation, with those that need the scores of all its examples."""
    task = context.task
    if not isinstance(task, ExampleTask) or not task.scored:
        return counts
    return replace(counts, own={**counts.own, **task.count_scores(context.data, part, scores)})


def task_of_job(context: Context) -> TensorFlowTask:
    """TensorFlow's side of the job's task."""
    task: TensorFlowTask = import_module(context.task.module("tensorflow")).TASK
    return task

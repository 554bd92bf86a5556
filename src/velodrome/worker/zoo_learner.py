"""What engines share that train networks of the zoo in a copy of their own: weights by name, evaluation of images, and
saved models."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from velodrome import files
from velodrome.models.equivalence import claims_equivalence, equivalence_warnings, zoo_differences
from velodrome.models.initial_weights import read_matching
from velodrome.models.recipe import DESCRIPTION, README, VOCABULARY
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import evaluation_indices
from velodrome.transport.base import Transport
from velodrome.worker.context import Context
from velodrome.worker.learner import Part
from velodrome.worker.transport_learner import TransportLearner

WEIGHTS = "model.safetensors"
Values = dict[str, NDArray[Any]]


class ZooLearner(TransportLearner):
    """Trains a network of the zoo, whose tensors have the names that `--weights` and saved models use."""

    #: What the description of a saved model names as engine, and what `saved.load` of the engine returns.
    engine: str
    loaded: str

    def __init__(self, context: Context, transport: Transport) -> None:
        super().__init__(context, transport)
        self._rates: NDArray[np.float64] = np.array([context.job.rate])
        if context.is_chief and claims_equivalence(context.job):
            self._warn(equivalence_warnings(context.job.model, zoo_differences(context.job.model)))

    def _warn(self, notes: tuple[str, ...]) -> None:
        for note in notes if self._context.is_chief else ():
            self._context.events.emit("warning", message=note)

    def initial_values(self, shapes: Mapping[str, tuple[int, ...]]) -> Values:
        """The tensors to start from in place of new ones: those of a saved model, or those that `--weights` matches."""
        if self._context.saved_model is not None:
            return dict(load_file(self._context.saved_model / WEIGHTS))
        if not self._context.job.weights:
            return {}
        values, notes = read_matching(self._context.job.weights, shapes)
        self._warn(notes)
        return values

    def set_rate(self, rate: float) -> None:
        self.set_rates(np.array([rate]))

    def set_rates(self, rates: NDArray[np.float64]) -> None:
        self._rates = rates

    def agree(self, number: int) -> int:
        agreed = np.array([number], np.int64)
        with self._context.waiting():
            self._transport.broadcast(agreed)
        return int(agreed[0])

    def evaluate_images(
        self, part: Part, size: int, predict: Callable[[NDArray[Any], NDArray[np.int64]], tuple[float, Any]]
    ) -> Counts:
        """Count a part of labelled images; `predict` returns the summed loss and the classes of at most `size` images
        with these labels."""
        examples = getattr(self._context.data, part)
        mine = evaluation_indices(len(examples), self._transport.rank, self._transport.size)
        loss, predicted = 0.0, np.empty(len(mine), np.int64)
        for low in range(0, len(mine), size):
            chosen = mine[low : low + size]
            labels = np.asarray(examples.labels[chosen], np.int64)
            summed, predicted[low : low + size] = predict(examples.images[chosen], labels)
            loss += summed
            self._context.status.seen += 1
        return self.count_classified(part, examples, mine, predicted, loss, self._context.data.classes)

    # -- the saved model

    @abstractmethod
    def _saved_tensors(self) -> Values:
        """What is saved of the trained network."""

    @abstractmethod
    def _description(self) -> dict[str, Any]:
        """What is required, besides the tensors, to load the model."""

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        job, data = self._context.job, self._context.data
        with files.atomic_path(folder / WEIGHTS) as partial:
            save_file({name: np.ascontiguousarray(value) for name, value in self._saved_tensors().items()}, partial)
        about = {"engine": self.engine, "model": job.model, "dtype": job.dtype, "file": WEIGHTS,
                 "dataset": data.name, **self._description()}
        if vocabulary := getattr(data, "vocabulary", None):
            about |= {"kind": "text", "vocabulary": len(vocabulary)}
            files.write_text(folder / VOCABULARY, json.dumps(vocabulary, ensure_ascii=False) + "\n", sync=False)
        files.write_text(folder / README, self._readme(about, folder), sync=False)
        files.write_text(folder / DESCRIPTION, json.dumps(about, indent=2) + "\n", sync=False)

    def _readme(self, about: Mapping[str, Any], folder: Path) -> str:
        return "\n".join([
            f"# Model `{about['model']}`, trained by Velodrome", "",
            f"`{WEIGHTS}` holds its weights under the names and in the layouts of PyTorch's zoo of Velodrome, so that "
            f"both engines can start from them (`--weights`). In the environment of `velodrome engines install "
            f"{self.engine}`:", "",
            "```python", "from pathlib import Path", "", f"from velodrome.engines.{self.engine}.saved import load", "",
            f"{self.loaded} = load(Path({str(folder.resolve())!r}))", "```", "",
        ])

"""Training a language model on rows of a text side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from velodrome import files
from velodrome.catalog.models import UNROLL
from velodrome.engines.torch.feed import Replica, TextFeed
from velodrome.engines.torch.model_file import load_saved
from velodrome.engines.torch.network import Network, build_text
from velodrome.engines.torch.tasks import TorchTask
from velodrome.models.recipe import VOCABULARY


class LanguageModel(TorchTask):
    """Words as their places in the vocabulary of the text."""

    def network(self, device: torch.device) -> Network:
        model, _ = load_saved(self._context)
        return build_text(self._context.job, len(self._context.data.vocabulary), device, model=model)

    def feed(self, network: Network, replica: Replica) -> TextFeed:
        return TextFeed(self._context.data, UNROLL.of(self._context.job), network.objective, replica)

    def description(self, network: Network) -> dict[str, Any]:
        text = self._context.data
        about = {"kind": "text", "vocabulary": len(text.vocabulary), "dataset": text.name}
        carries = hasattr(network.model, "initial_state")
        return about if carries else {**about, "context": UNROLL.of(self._context.job)}

    def write_extra_files(self, folder: Path) -> None:
        words = json.dumps(self._context.data.vocabulary, ensure_ascii=False)
        files.write_text(folder / VOCABULARY, words + "\n", sync=False)


TASK = LanguageModel

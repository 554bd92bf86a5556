"""A trained model on disk: its weights in safetensors, and a description from which the model is built again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from velodrome import files
from velodrome.engines.torch import network
from velodrome.models import torch_zoo

WEIGHTS = "model.safetensors"
DESCRIPTION = "model.json"


def save(folder: Path, model: nn.Module, description: dict[str, Any]) -> None:
    """Write weights and description; the description last, so that a folder that has one is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    # Clones, because parameters are views of one buffer, which safetensors refuses.
    weights = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    try:
        with files.atomic_path(folder / WEIGHTS) as partial:
            save_file(weights, partial)
    except SafetensorError as error:
        raise OSError(f"cannot write {folder / WEIGHTS}: {error}") from error
    files.write_text(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n", sync=False)


def load(folder: Path) -> nn.Module:
    """Load a saved model in evaluation mode. It takes images (count, channels, height, width), whose bytes were
    multiplied by `scale` of the description and added to its `offset`; a language model takes words and its LSTM
    state."""
    about = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    if about.get("kind") == "text":
        language = torch_zoo.build_text(about["model"], about["vocabulary"]).to(getattr(torch, about["dtype"]))
        language.load_state_dict(load_file(folder / WEIGHTS))
        return language.eval()
    model = network.make(about["model"], about["model_args"], tuple(about["input_shape"]), about["classes"])
    model = model.to(torch.float64 if about["dtype"] == "float64" else torch.float32)
    with torch.no_grad():  # one call, because lazy layers take their shape from it
        model.eval()(torch.zeros(1, *about["input_shape"], dtype=getattr(torch, about["dtype"])))
    model.load_state_dict(load_file(folder / WEIGHTS))
    return model.eval()

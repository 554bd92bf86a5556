"""The network of a saved model, loaded as its `README.md` says, for an evaluation in place of training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from velodrome.catalog.models import is_own
from velodrome.data.pixels import transform_of
from velodrome.engines.torch.calling import LogitsModel
from velodrome.engines.torch.model_file import restored
from velodrome.engines.torch.network import Autocast, Network, loss_of_logits
from velodrome.models.description import check_data
from velodrome.models.recipe import read_description
from velodrome.worker.context import Context


def load_network(folder: Path, context: Context, device: torch.device) -> Network:
    """What was saved in a folder, ready to be evaluated on the job's data."""
    job = context.job
    about = read_description(folder, job.model, job.model_args)
    check_data(about, context.data)
    model, from_zoo = restored(folder, about).to(device), not is_own(job.model)
    channels_last = from_zoo or about.get("channels_last", False)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    mixed = job.dtype == "bfloat16"
    if about.get("kind") == "text":
        language = Autocast(model, device) if mixed else None
        return Network(model=model, loss=loss_of_logits, from_zoo=True, adapter=language)
    adapter: nn.Module | None = None if from_zoo else LogitsModel(
        model, training="logits", evaluation=about["outputs"], evaluation_batch=about.get("only_batch"),
        several=about.get("several", False),
    )
    if mixed:
        adapter = Autocast(adapter or model, device)
    return Network(
        model=model, loss=loss_of_logits, from_zoo=from_zoo, channels_last=channels_last,
        pixels=transform_of(job.pixels, context.data), adapter=adapter,
    )

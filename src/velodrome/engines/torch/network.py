"""The network of a job: built from the zoo or the user's function, checked against the data, with its loss."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

from velodrome.data.pixels import PixelTransform, transform_of
from velodrome.data.splits import Splits
from velodrome.engines.torch.pixels import converter
from velodrome.errors import BadRequest
from velodrome.models import own, torch_zoo
from velodrome.offers.models import is_own
from velodrome.spec.job import Job

PROBED_EXAMPLES = 4
#: Layers whose training needs more than one example. Lazy ones have become these by the time they are looked for.
_BATCH_NORMALISATION = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
#: Probabilities are kept this far from zero before their logarithm is taken.
SMALLEST_PROBABILITY = 1e-7

#: Sum of the losses of a batch, from the model's outputs and the labels.
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def loss_of_logits(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Also correct for log-probabilities, which are normalised logits."""
    return functional.cross_entropy(outputs, labels, reduction="sum")


def loss_of_probabilities(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.nll_loss(outputs.clamp(SMALLEST_PROBABILITY, 1.0).log(), labels, reduction="sum")


@dataclass(frozen=True)
class Network:
    """A model that fits the data, on its device and in its number format."""

    model: nn.Module
    loss: Loss
    #: Whether it is from the zoo: then its properties are known and need no checks.
    from_zoo: bool
    #: The smallest batch a process can train on: batch normalisation has no variance of one example.
    minimum_batch: int = 1
    #: A few images, for trying the model.
    sample: torch.Tensor | None = None
    #: How bytes become its input; None for a language model.
    pixels: PixelTransform | None = None

    def leaves_parameters_unchanged(self) -> bool:
        """Whether a forward pass in training changes no parameter: only then may processes share them."""
        if self.from_zoo:
            return True
        try:
            tried = copy.deepcopy(self.model).train()
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                tried(self.sample)
        except Exception:
            return False
        pairs = zip(self.model.parameters(), tried.parameters(), strict=True)
        return all(torch.equal(before, after) for before, after in pairs)


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    # A user's model may draw from these.
    np.random.seed(seed)
    random.seed(seed)


def dtype_of(job: Job) -> torch.dtype:
    return torch.float64 if job.dtype == "float64" else torch.float32


def make(model: str, arguments: dict[str, Any], input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build a model by name for images of (channels, height, width)."""
    if not is_own(model):
        if arguments:
            raise BadRequest(f"--model-arg {next(iter(arguments))!r}: model {model!r} of the zoo takes no arguments")
        return torch_zoo.build(model, input_shape, classes)
    builder = own.builder_of(model)
    with own.fits_data(model, input_shape, building=True):
        built = builder(input_shape=input_shape, classes=classes, **arguments)
    if not isinstance(built, nn.Module):
        raise BadRequest(f"model {model!r} returned {type(built).__name__!r}: engine torch needs a torch.nn.Module")
    return built


def build(job: Job, data: Splits, device: torch.device) -> Network:
    """The job's network with the weights that its seed decides, or `BadRequest`."""
    height, width, channels = data.input_shape
    shape = channels, height, width
    seed_everything(job.seed)
    dtype = dtype_of(job)
    from_zoo = not is_own(job.model)
    model = make(job.model, job.model_args, shape, data.classes).to(device=device, dtype=dtype)
    if from_zoo:
        model = model.to(memory_format=torch.channels_last)
    pixels = transform_of(job.pixels, data)
    convert = converter(pixels, shape, dtype, device, channels_last=False)
    chosen = data.train.images[:PROBED_EXAMPLES].transpose(0, 3, 1, 2)
    sample = convert(torch.from_numpy(np.array(chosen, order="C")).to(device))
    outputs = _probe(job.model, model, sample, data.classes)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadRequest(f"model {job.model!r} has nothing to train: none of its parameters requires a gradient")
    normalised = any(isinstance(module, _BATCH_NORMALISATION) for module in model.modules())
    return Network(
        model=model,
        loss=loss_of_probabilities if own.are_probabilities(outputs) else loss_of_logits,
        from_zoo=from_zoo,
        minimum_batch=2 if normalised else 1,
        sample=sample,
        pixels=pixels,
    )


def build_text(job: Job, vocabulary: int, device: torch.device) -> Network:
    """The job's language model with the weights that its seed decides."""
    seed_everything(job.seed)
    model = torch_zoo.build_text(job.model, vocabulary).to(device=device, dtype=dtype_of(job))
    return Network(model=model, loss=loss_of_logits, from_zoo=True, minimum_batch=1)


def _probe(name: str, model: nn.Module, images: torch.Tensor, classes: int) -> np.ndarray:
    """What the model answers to a few training examples; also gives lazy layers their shape."""
    model.eval()
    with torch.no_grad(), own.fits_data(name, tuple(images.shape[1:]), building=False):
        outputs = model(images)
    model.train()
    if not isinstance(outputs, torch.Tensor):
        raise BadRequest(f"model {name!r} answers with {type(outputs).__name__!r}: it must return one tensor of logits")
    own.check_outputs(name, tuple(outputs.shape), len(images), classes)
    return np.asarray(outputs.double().cpu().numpy())

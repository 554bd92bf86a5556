"""The network of a job: built from the zoo or the user's function, checked against the data, with its loss."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

from velodrome.catalog.models import is_own
from velodrome.data.examples import ExampleSet
from velodrome.data.pixels import PixelTransform, transform_of
from velodrome.engines.torch import trial
from velodrome.engines.torch.calling import LogitsModel, call
from velodrome.engines.torch.feed import converter, dtype_of
from velodrome.engines.torch.model_checks import expects_bytes, put_channels_last
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import replicas_of
from velodrome.models import own, torch_zoo
from velodrome.models.checks import byte_input_note, other_size, way_out
from velodrome.tasks.supervised import Classification

#: Sum of the losses of a batch, from the model's outputs and the labels.
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def loss_of_logits(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Also correct for log-probabilities, which are normalised logits."""
    return functional.cross_entropy(outputs, labels, reduction="sum")


def training_loss(job: Job) -> Loss:
    """The loss that a job trains with: its labels may be smoothed. Evaluation uses the labels as they are."""
    if not job.label_smoothing:
        return loss_of_logits
    return partial(functional.cross_entropy, reduction="sum", label_smoothing=job.label_smoothing)


class Autocast(nn.Module):
    """A model whose layers compute in bfloat16 where that is safe; its weights and what it returns are float32."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.model, self._device = model, device.type

    def forward(self, *inputs: Any) -> Any:
        with torch.autocast(self._device, torch.bfloat16):
            outputs = self.model(*inputs)
        return _float32(outputs)


def _float32(outputs: Any) -> Any:
    """Tensors, or tuples of them, in float32."""
    return outputs.float() if isinstance(outputs, torch.Tensor) else tuple(map(_float32, outputs))


@dataclass(frozen=True)
class Network:
    """A model that fits the data, on its device and in its number format."""

    model: nn.Module
    #: What is minimised; `evaluation_loss` is what is reported of validation and test.
    loss: Loss
    #: Whether it is from the zoo: then its properties are known and need no checks.
    from_zoo: bool
    #: Whether images lie in memory with the channels last.
    channels_last: bool = False
    #: The smallest batch a process can train on: batch normalisation has no variance of one example.
    minimum_batch: int = 1
    #: Makes a batch of images, for trying the model.
    sample: Callable[[], torch.Tensor] | None = None
    #: How bytes become its input; None for a language model.
    pixels: PixelTransform | None = None
    #: What is called instead of the model, where the model does not return logits for every batch or does not compute
    #: in the format of its weights.
    adapter: nn.Module | None = None
    #: What a saved model records of it: what it returns in evaluation, the only batch it takes, whether a call gave it
    #: its shapes.
    saved_as: dict[str, Any] = field(default_factory=lambda: {"outputs": "logits", "only_batch": None, "lazy": False})
    #: What the user should know about the model, as sentences.
    notes: tuple[str, ...] = ()
    evaluation_loss: Loss = loss_of_logits
    #: Calls a copy of the model as training does, for trying it; by default with `sample`.
    call: Callable[[nn.Module], object] | None = None

    @property
    def forward(self) -> nn.Module:
        """What training and evaluation call: it returns what the loss takes."""
        return self.adapter or self.model

    def call_copy(self, tried: nn.Module) -> object:
        """Call a copy of the model as training does."""
        return self.call(tried) if self.call else tried(self.sample() if self.sample else None)

    def leaves_parameters_unchanged(self) -> bool:
        """Whether a forward pass in training changes no parameter: only then may processes share them."""
        if self.from_zoo:
            return True
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        try:
            with trial.untouched(self.model) as tried, torch.no_grad():
                if tried is self.model:  # it cannot be copied, and a call may change more than tensors
                    return False
                self.call_copy(tried.train())
                return all(torch.equal(*pair) for pair in zip(before, tried.parameters(), strict=True))
        except Exception:
            return False


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    # A user's model may draw from these.
    np.random.seed(seed)
    random.seed(seed)


def make(model: str, arguments: dict[str, Any], input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build a model by name for images of (channels, height, width)."""
    if not is_own(model):
        if arguments:
            raise BadRequest(f"--model-arg {next(iter(arguments))!r}: model {model!r} of the zoo takes no arguments")
        return torch_zoo.build(model, input_shape, classes)
    builder = own.builder_of(model)
    with own.fits_data(model, input_shape, building=True, engine="torch"):
        built = builder(input_shape=input_shape, classes=classes, **arguments)
    if not isinstance(built, nn.Module):
        raise own.wrong_framework(model, built, "torch")
    return built


def build(job: Job, data: ExampleSet, device: torch.device, *, evaluation_batch: int) -> Network:
    """The job's network with the weights that its seed decides, or `BadRequest`.

    `evaluation_batch` is the number of examples that are evaluated at a time.
    """
    height, width, channels = data.input_shape
    shape = channels, height, width
    seed_everything(job.seed)
    dtype, pixels = dtype_of(job), transform_of(job.pixels, data)
    model = make(job.model, job.model_args, shape, data.class_count).to(device=device, dtype=dtype)
    convert = converter(pixels, shape, dtype, device, channels_last=False)

    def sample(count: int) -> torch.Tensor:
        """So many images; they come round again where there are fewer."""
        chosen = data.train.images[np.arange(count) % len(data.train)].transpose(0, 3, 1, 2)
        return convert(torch.from_numpy(np.array(chosen, order="C")).to(device))

    if not is_own(job.model):
        model = model.to(memory_format=torch.channels_last)
        mixed = Autocast(model, device) if job.dtype == "bfloat16" else None
        return Network(model=model, loss=training_loss(job), from_zoo=True, channels_last=True, pixels=pixels,
                       adapter=mixed, sample=lambda: sample(_training_sizes(job, data)[0]))
    sizes = _training_sizes(job, data)
    lazy = trial.initialise(job.model, model, lambda: sample(sizes[0]))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadRequest(f"model {job.model!r} has nothing to train: none of its parameters requires a gradient")
    found = trial.examine(
        job.model, model, sample, data.class_count, sizes=sizes,
        evaluation_size=other_size(data, replicas_of(job), evaluation_batch, sizes[0]), way_out=way_out(job, data),
    )
    notes = found.notes
    if pixels.form != "byte":
        with trial.untouched(model) as tried:
            scales = expects_bytes(tried, sample(sizes[0]))
        notes += (byte_input_note(job.model, pixels.form),) if scales else ()
    channels_last, slow = put_channels_last(
        job.model, model, lambda tried, layout: call(tried, sample(sizes[0]).to(memory_format=layout))
    )
    notes += slow
    plain = {found.training, found.evaluation} <= {"logits", "sigmoid"}
    plain = plain and found.evaluation_batch is None and not found.several
    adapter: nn.Module | None = None if plain else LogitsModel(
        model, training=found.training, evaluation=found.evaluation, evaluation_batch=found.evaluation_batch,
        several=found.several,
    )
    if job.dtype == "bfloat16":
        adapter = Autocast(adapter or model, device)
    return Network(
        model=model,
        loss=training_loss(job),
        from_zoo=False,
        channels_last=channels_last,
        minimum_batch=found.minimum_batch,
        sample=lambda: sample(sizes[0]),
        pixels=pixels,
        adapter=adapter,
        saved_as={"outputs": found.evaluation, "only_batch": found.evaluation_batch, "lazy": lazy,
                  "several": found.several, "channels_last": channels_last},
        notes=notes,
    )


def _training_sizes(job: Job, data: ExampleSet) -> list[int]:
    """The numbers of examples that a process trains on at a time, largest first."""
    schedule = Classification().schedule(job, data, 1).in_parts(job.accumulate)
    return [size for size in schedule.sizes(job.steps) if size]


def build_text(job: Job, vocabulary: int, device: torch.device) -> Network:
    """The job's language model with the weights that its seed decides."""
    seed_everything(job.seed)
    model = torch_zoo.build_text(job.model, vocabulary, job.unroll).to(device=device, dtype=dtype_of(job))
    adapter = Autocast(model, device) if job.dtype == "bfloat16" else None
    return Network(model=model, loss=loss_of_logits, from_zoo=True, adapter=adapter)


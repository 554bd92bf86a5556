"""The weights of a model: those it starts from, those that processes share, and the trained ones on disk.

A trained model is its weights in safetensors, and a description from which the model is built again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from safetensors.torch import save as serialize
from torch import nn

from velodrome import files
from velodrome.catalog.models import is_own
from velodrome.engines.torch.calling import initialise, untouched
from velodrome.errors import BadRequest
from velodrome.models import own, torch_zoo
from velodrome.models.checks import class_scores
from velodrome.models.description import check_data
from velodrome.models.model_files import building_arguments, load_matching, read_description, tuples, write_description
from velodrome.tasks.base import Batch
from velodrome.training import checkpoint
from velodrome.training.context import Context
from velodrome.training.learner import State
from velodrome.training.trial import saving_problem
from velodrome.transport.base import Transport

WEIGHTS = "model.safetensors"
Shape = tuple[int, ...] | dict[str, tuple[int, ...]]


# -- before and while it is trained


@torch.no_grad()
def load_initial_weights(model: nn.Module, file: str) -> tuple[str, ...]:
    """Copy what matches by name and shape into the model; what did not match, as sentences."""
    places = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    shapes = {name: tuple(place.shape) for name, place in places.items()}
    return load_matching(file, shapes, lambda name, value: places[name].copy_(value), framework="pt")


def start_from_weights(context: Context, model: nn.Module, rank: int) -> None:
    """Load the weights that the job starts from; the other processes get them from rank 0."""
    file = context.job.weights
    if file is None or rank or (context.resume and checkpoint.latest(context.folder)):
        return
    for note in load_initial_weights(model, file):
        context.events.emit("warning", message=note)


@torch.no_grad()
def broadcast_weights(model: nn.Module, transport: Transport) -> None:
    """Give every process the tensors of rank 0."""
    if transport.size == 1:
        return
    for value in model.state_dict().values():
        if isinstance(value, torch.Tensor) and value.numel():
            array = value.detach().cpu().contiguous().numpy()  # the memory of the value itself, if that is possible
            transport.broadcast(array.reshape(-1).view(np.uint8))
            value.copy_(torch.from_numpy(array))


@torch.no_grad()
def average_buffers(model: nn.Module, among: Transport) -> None:
    """Replace the buffers of a model, which are its statistics, by their mean over processes."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point() and buffer.numel()]
    if among.size == 1 or not buffers:
        return
    flat = np.concatenate([buffer.detach().double().cpu().numpy().ravel() for buffer in buffers])
    among.all_reduce(flat)
    flat /= among.size
    offset = 0
    for buffer in buffers:
        mean = torch.from_numpy(flat[offset : offset + buffer.numel()])
        buffer.copy_(mean.view(buffer.shape))
        offset += buffer.numel()


# -- on disk


def to_arrays(prefix: str, tensors: Mapping[str, Any]) -> State:
    """The tensors among these as arrays on the host, with the prefix before their names."""
    return {
        f"{prefix}{name}": value.detach().cpu().contiguous().numpy()
        for name, value in tensors.items() if isinstance(value, torch.Tensor)
    }


def from_arrays(prefix: str, state: State) -> dict[str, torch.Tensor]:
    """Copies of the arrays that have the prefix before their names, as tensors by the rest of their names."""
    return {
        name.removeprefix(prefix): torch.from_numpy(np.array(value))
        for name, value in state.items() if name.startswith(prefix)
    }


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's tensors by name. Clones, because parameters are views of one buffer, which safetensors refuses."""
    return {
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
    }


def save(
    folder: Path, model: nn.Module, description: dict[str, Any], weights: dict[str, torch.Tensor] | None = None
) -> None:
    """Write the weights, how to load them, and what the model is: this last, so that a folder with a
    description is complete. `weights` are the model's, where this process does not have all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with files.atomic_path(folder / WEIGHTS) as partial:
            save_file(weights_of(model) if weights is None else weights, partial)
    except SafetensorError as error:
        raise OSError(f"cannot write {folder / WEIGHTS}: {error}") from error
    about = {**description, "file": WEIGHTS, "strict": not not_saved(model)}
    write_description(folder, about)


def not_saved(model: nn.Module) -> list[str]:
    """Names in the model's state that are no tensors: what `get_extra_state` of the user's returns."""
    return [name for name, value in model.state_dict().items() if not isinstance(value, torch.Tensor)]


def check_saving(
    name: str, model: nn.Module, weights: dict[str, torch.Tensor] | None = None
) -> tuple[str, ...]:
    """Refuse a model with a tensor that cannot be saved; what the user should know about the rest, as sentences.
    `weights` as for `save`."""
    for key, value in (model.state_dict() if weights is None else weights).items():
        if isinstance(value, torch.Tensor):
            try:
                serialize({key: value.detach().flatten()[:1].cpu().contiguous().clone()})
            except Exception as error:
                raise BadRequest(
                    f"model {name!r} cannot be saved: its tensor {key!r} is {value.dtype} and {value.layout}, which "
                    "safetensors cannot hold"
                ) from error
    left_out = ", ".join(not_saved(model))
    return (f"model {name!r} has state that is not a tensor and will not be saved: {left_out}",) if left_out else ()


def check(
    context: Context, sample: Callable[[], Batch] | None, model: nn.Module, write: Callable[[Path], None], folder: Path,
    weights: dict[str, torch.Tensor] | None,
) -> tuple[str, ...]:
    """Refuse a user's model that cannot be saved; what he should know about loading what `write` saves. `weights` as
    for `save`."""
    name = context.job.model
    notes = check_saving(name, model, weights)
    # Labelled images alone: other models may take several inputs.
    images = sample().x if sample and context.task.classifies_images(context.data) else None
    problem = reload_problem(name, model, write, images, folder, weights)
    return notes if problem is None else (
        *notes, f"model {name!r} could not be loaded after saving it ({problem}): its weights will be written to "
        f"model/{WEIGHTS} anyway, and `velodrome runs verify` will fail",
    )


def reload_problem(
    name: str, model: nn.Module, write: Callable[[Path], None], sample: Any | None, folder: Path,
    weights: dict[str, torch.Tensor] | None = None,
) -> str | None:
    """Why what `write` saves cannot be loaded again, or is another model then; None if it is the same. It is tried in a
    folder below `folder`. `weights` as for `save`; the model is not called then."""

    def problem_in(place: Path) -> str | None:
        write(place)
        loaded = load(place, name)
        ours, theirs = weights_of(model) if weights is None else weights, weights_of(loaded)
        if ours.keys() != theirs.keys() or not all(torch.equal(value, theirs[key]) for key, value in ours.items()):
            return "not all of its weights are restored"
        if sample is None or weights is not None:
            return None
        return _difference(model, loaded.to(next(model.parameters()).device), sample)

    return saving_problem(folder, problem_in)


def _difference(model: nn.Module, loaded: nn.Module, sample: Any) -> str | None:
    """Whether two models with the same weights compute something else; a model that draws random numbers is not
    compared."""
    with untouched(model) as tried, torch.no_grad():
        tried.eval()
        before, again, after = (class_scores(each(sample), torch.Tensor) for each in (tried, tried, loaded))
    if not isinstance(before, torch.Tensor):
        return None
    rounding = 1e-4 * float(before.nan_to_num(0.0, 0.0, 0.0).abs().max())
    same = [torch.allclose(before, other, atol=rounding, equal_nan=True) for other in (again, after)]
    return "it computes something else after loading" if same == [True, False] else None


def load(folder: Path, name: str | None = None, arguments: Mapping[str, Any] | None = None) -> nn.Module:
    """Load a saved model in evaluation mode. A model of your own is loaded only by its `name`, module:function, with
    the `arguments` that are recorded unless others are given. It takes images (count, channels, height, width), whose
    bytes were multiplied by `scale` of the description and added to its `offset`; a language model takes words and, if
    it carries one, its state."""
    return restored(folder, read_description(folder, name, arguments))


def restored(folder: Path, about: Mapping[str, Any]) -> nn.Module:
    """The model of a folder whose description was read for the model that is expected there."""
    stored, dtype = load_file(folder / WEIGHTS), getattr(torch, about["dtype"])
    if about.get("kind") == "text":
        model: nn.Module = torch_zoo.build_text(about["model"], about["vocabulary"], about.get("context", 0)).to(dtype)
    else:
        model = _built(about, dtype)
    if about.get("engine") == "jax":  # which does not count the batches that it normalised
        counted = {name: value for name, value in model.state_dict().items() if name.endswith(".num_batches_tracked")}
        stored = {**counted, **stored}
    model.load_state_dict(stored, strict=about.get("strict", True))
    return model.eval()


def make(model: str, arguments: Mapping[str, Any], input_shape: Shape, outputs: int | dict[str, int]) -> nn.Module:
    """Build a model by name; `arguments` are those of a user's function."""
    if not is_own(model):
        return torch_zoo.build(model, input_shape, outputs)  # type: ignore[arg-type]  # it has one input
    builder = own.builder_of(model)
    with own.fits_data(model, input_shape, building=True, engine="torch"):
        built = builder(**arguments)
    if not isinstance(built, nn.Module):
        raise own.wrong_framework(model, built, "torch")
    return built


def _built(about: Mapping[str, Any], dtype: torch.dtype) -> nn.Module:
    """A model of examples, with fresh weights."""
    shape, named, only_batch = tuples(about["input_shape"]), about.get("inputs", {}), about.get("only_batch")
    if about.get("engine") == "jax":  # with the same names and layouts, but for images with channels last
        shape = (shape[2], *shape[:2])
    arguments = building_arguments(about) if is_own(about["model"]) else about.get("model_args", {})
    outputs = about["returns"] if about.get("kind") == "arrays" else about["classes"]
    model = make(about["model"], arguments, shape, outputs).to(dtype)
    shapes = shape if isinstance(shape, dict) else {next(iter(named), "x"): shape}
    whole = {name for name, column in named.items()
             if np.dtype(column["dtype"]).kind in "iu" and name not in about["images"]}

    def zeros() -> Any:
        return Batch({name: torch.zeros(only_batch or 1, *each, dtype=torch.int64 if name in whole else dtype)
                      for name, each in shapes.items()}, {}).x

    initialise(about["model"], model, zeros)
    return model


def load_saved(context: Context) -> tuple[nn.Module | None, dict[str, Any] | None]:
    """The saved model that a job evaluates in place of training, and its description; None for one that trains."""
    folder, job = context.saved_model, context.job
    if folder is None:
        return None, None
    about = read_description(folder, job.model, job.model_args)
    check_data(about, context.data)
    return restored(folder, about).train(), about

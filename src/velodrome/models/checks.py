"""What is checked of a user's model, whatever the engine: its outputs, the sizes of its batches, whether it expects
bytes. No framework here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from velodrome.data.examples import ExampleSet
from velodrome.errors import BadRequest, UsersCodeFailed
from velodrome.job.job import Job
from velodrome.models.own import reason_of


def _describe(outputs: object) -> str:
    """A returned object in words: its type and, where it has several entries, which."""
    name = type(outputs).__name__
    if isinstance(outputs, Mapping):
        keys = ", ".join(map(repr, outputs))
        return f"a {name} with the keys {keys}" if keys else f"an empty {name}"
    if isinstance(outputs, tuple | list):
        kind = "tuple" if isinstance(outputs, tuple) else "list"
        return f"a {kind} of {len(outputs)}" + (f" ({name})" if name != kind else "")
    return f"{name!r}"


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


def class_scores(outputs: Any, tensor: type) -> Any:
    """The scores among what a model returned: the tensor itself, `.logits` or the key "logits" as Hugging Face's models
    have it, or the first entry of a tuple; what has none of these is returned as it is."""
    if isinstance(outputs, tensor):
        return outputs
    named = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(named, tensor):
        return named
    first = outputs[0] if isinstance(outputs, tuple) and outputs else None
    return first if isinstance(first, tensor) else outputs


def has_auxiliary(outputs: Any, tensor: type) -> bool:
    """Whether there are tensors of the same shape beside the scores: the outputs of auxiliary classifiers."""
    scores = class_scores(outputs, tensor)
    others = outputs.values() if isinstance(outputs, Mapping) else outputs if isinstance(outputs, tuple) else ()
    return any(isinstance(each, tensor) and each is not scores and _shape(each) == _shape(scores)
               for each in others)


def check_outputs(
    model: str, outputs: Any, tensor: type, examples: int, classes: int, *, training: bool = False
) -> Any:
    """The scores among what a model returned, in a tensor of this type; a model without one number per example and
    class is refused."""
    when, needed = " in training" if training else "", (examples, classes)
    scores = class_scores(outputs, tensor)
    by_place = isinstance(outputs, tuple) and not hasattr(outputs, "logits")
    if not isinstance(scores, tensor) or (by_place and _shape(scores) != needed):
        fix = "turn its auxiliary outputs off, or return the logits only" if training else "return the logits only"
        raise BadRequest(
            f"model {model!r} returns {_describe(outputs)}{when}, and one tensor of logits is needed: {fix}"
        )
    shape = _shape(scores)
    if shape != needed:
        raise BadRequest(
            f"model {model!r} answers with shape {shape} for {examples} examples{when}; {classes} classes need {needed}"
        )
    return scores


def probabilities_note(name: str) -> str:
    """The sentence about a model that returns probabilities of which the logits are unknown."""
    return (
        f"model {name!r} returns probabilities whose logits cannot be recovered: the loss is computed from their "
        "logarithms, and one that rounds to zero gets no gradient; return logits instead"
    )


def auxiliary_note(model: str) -> str:
    """What the user of a model with auxiliary classifiers should know."""
    return (
        f"model {model!r} has auxiliary outputs in training: the loss is that of its first output or logits, and what "
        "only the others depend on is not trained; a task of your own can add their losses"
    )


def are_probabilities(outputs: NDArray[np.floating[Any]]) -> bool:
    """Whether outputs went through a softmax already: not negative, and every row adds up to one."""
    return bool(np.all(outputs >= 0) and np.allclose(outputs.sum(axis=1), 1.0, atol=1e-3))


def wrong_batch(model: str, size: int, full: int, error: Exception, how_to_fix: str) -> UsersCodeFailed:
    """The refusal of a model that trains on most batches of the job, and not on those of one size."""
    return UsersCodeFailed(
        f"model {model!r} trains on batches of {full} and not on one of {size}, which the end of an epoch has: "
        f"{reason_of(error)}; {how_to_fix}, or let the model take any batch"
    )


def how_to_fix(job: Job, data: ExampleSet) -> str:
    """How to avoid a smaller batch at the end of an epoch."""
    if job.workers > 1:
        return "choose another --batch-size or another number of workers"
    return f"choose a --batch-size that divides the {len(data.train):,} training examples"


def other_size(data: ExampleSet, workers: int, batch: int, but: int) -> int:
    """One of the numbers of examples that a process evaluates at a time, if possible another one than `but`."""
    shares = [-(-len(part) // workers) for part in (data.test, data.validation)]
    sizes = [size for share in shares for size in (min(share, batch), share % batch) if size not in (0, but)]
    return sizes[0] if sizes else but


#: What is done to the input, with a number or an array.
Operation = Literal["divide", "multiply", "subtract"]
#: Factors below this are for bytes: 1/255, 1/127.5 and 1/128 are usual.
FOR_BYTES = 1 / 16


def is_for_bytes(operation: Operation, number: Any) -> bool:
    """Whether this makes sense for numbers up to 255, and none for numbers up to 1."""
    try:
        size = float(np.abs(np.asarray(number, np.float64)).max())
    except (TypeError, ValueError):
        return False
    if operation == "subtract":
        return 1 < size <= 255  # the mean of bytes
    return size > 1 / FOR_BYTES if operation == "divide" else 0 < size < FOR_BYTES


def byte_input_note(name: str, form: str) -> str:
    """The sentence about a model that expects bytes and is fed something else."""
    return (
        f"model {name!r} begins by scaling its input as if pixels were from 0 to 255, and --pixels {form} feeds "
        "others: choose --pixels byte, or leave the scaling out of the model"
    )

"""What Velodrome has to know about a model, whatever the engine: its outputs, the sizes of its batches, whether it
expects bytes, what voids the guarantee that N synchronous workers end with the weights of one, and the random number
generators that it may draw from: Python's, NumPy's, and those that it holds itself.

The states of generators are kept while a model is tried, and saved with every checkpoint, so that neither a trial nor
an interruption changes what a model draws. Frameworks add their own. No framework here.
"""

from __future__ import annotations

import base64
import json
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog.engines.torch import MICRO_BATCHES
from velodrome.catalog.models import zoo_model
from velodrome.catalog.registry import strategy_of
from velodrome.data.examples import ExampleSet
from velodrome.errors import BadRequest, UsersCodeFailed
from velodrome.job.job import Job
from velodrome.job.resolve import replicas_of
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


#: Each reason why workers and one process differ, as a run states it.
BATCH_NORMALISATION = "batch normalisation, which normalises each part of a batch by itself"
RANDOM_NUMBERS = "random numbers in its forward pass (dropout, augmentation), and each worker draws its own"
STATISTICS = "statistics that its forward pass changes, and they are averaged over the workers before evaluation"


def claims_equivalence(job: Job) -> bool:
    """Whether a job should end with the weights of one worker because gradients are summed: those of several
    synchronous workers, each with a part of a batch, or those of a pipeline's micro-batches."""
    strategy = strategy_of(job)
    divided = replicas_of(job) > 1 or (MICRO_BATCHES.of(job) or 1) > 1
    return divided and strategy.synchronous and strategy.exact and all(
        option.exact or option.of(job) is None for option in strategy.options
    )


def zoo_differences(name: str) -> list[str]:
    """Those of a model that comes with Velodrome, for engines that cannot look into theirs."""
    model = zoo_model(name)
    reasons = {BATCH_NORMALISATION: model.normalises, RANDOM_NUMBERS: model.draws}
    return [reason for reason, holds in reasons.items() if holds]


def equivalence_warnings(model: str, reasons: Collection[str]) -> tuple[str, ...]:
    """The sentence that a run states once about its model; none without a reason."""
    if not reasons:
        return ()
    return (
        f"model {model!r} has {'; and '.join(reasons)}: the guarantee that several synchronous workers end with the "
        "same weights as one does not hold for it",
    )


@dataclass(frozen=True)
class Generator:
    """How the state of one generator is read and set: numbers, texts, arrays, and lists or dictionaries of them."""

    get: Callable[[], Any]
    set: Callable[[Any], object]


#: By names that are the same in every process and every run of a job.
Generators = dict[str, Generator]
#: Kinds of generators, and how each is read and set.
Kinds = Mapping[type, Callable[[Any], Generator]]


def _of_python(generator: Any) -> Generator:
    """Of `random.Random`, or of the module `random` itself."""

    def get() -> list[Any]:
        version, numbers, gauss = generator.getstate()
        return [version, np.array(numbers, np.uint32), gauss]

    return Generator(get, lambda state: generator.setstate((state[0], tuple(state[1].tolist()), state[2])))


def _of_numpy(generator: Any) -> Generator:
    """Of `numpy.random.RandomState`, or of the module `numpy.random` itself."""
    return Generator(lambda: generator.get_state(legacy=False), generator.set_state)


def _of_numpy_generator(generator: np.random.Generator) -> Generator:
    source = generator.bit_generator
    return Generator(lambda: source.state, lambda state: setattr(source, "state", state))


KINDS: Kinds = {
    random.Random: _of_python, np.random.RandomState: _of_numpy, np.random.Generator: _of_numpy_generator,
}


def of_process() -> Generators:
    """The global generators of Python and NumPy."""
    return {"python": _of_python(random), "numpy": _of_numpy(np.random)}


def of_model(model: object, part: type, kinds: Kinds = KINDS) -> Generators:
    """The generators that a model or one of its parts (objects of that class) has as an attribute, and the global
    variables of the files that define these parts."""
    generators: Generators = {}
    seen: set[int] = set()

    def look(name: str, value: Any) -> None:
        kind = next((kind for kind in kinds if isinstance(value, kind)), None)
        if kind is not None:
            if not isinstance(value, random.SystemRandom):  # has no state
                generators[name] = kinds[kind](value)
        elif isinstance(value, part | dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            for key, each in _contents(value):
                look(f"{name}.{key}", each)
            if isinstance(value, part) and (file := sys.modules.get(type(value).__module__)) and id(file) not in seen:
                seen.add(id(file))
                for key, each in vars(file).items():
                    if isinstance(each, tuple(kinds)):
                        look(f"{file.__name__}:{key}", each)

    look("model", model)
    return generators


def _contents(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value) if isinstance(value, list | tuple) else vars(value).items())


@contextmanager
def preserved(more: Generators | None = None) -> Iterator[None]:
    """Restore the states of the global generators, and of more, at the end, whatever was drawn in between."""
    kept = [(generator, generator.get()) for generator in (of_process() | (more or {})).values()]
    try:
        yield
    finally:
        for generator, state in kept:
            generator.set(state)


def read_states(generators: Generators) -> bytes:
    """The states of generators, as text that `restore_states` reads."""
    states = {name: generator.get() for name, generator in generators.items()}
    return json.dumps(states, default=_encoded, sort_keys=True).encode()


def restore_states(generators: Generators, text: bytes) -> None:
    """Set the generators to what `read_states` returned, in this process or another; those that it does not know stay
    as they are."""
    for name, state in json.loads(text, object_hook=_decoded).items():
        if name in generators:
            generators[name].set(state)


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": base64.b64encode(value.tobytes()).decode(), "dtype": value.dtype.str}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a generator's state has a {type(value).__name__!r}")


def _decoded(value: dict[str, Any]) -> Any:
    if value.keys() == {"array", "dtype"}:
        return np.frombuffer(base64.b64decode(value["array"]), value["dtype"]).copy()
    return value

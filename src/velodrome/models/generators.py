"""Random number generators that a model may draw from: Python's, NumPy's, and those that it holds itself.

Their states are kept while a model is tried, and saved with every checkpoint, so that neither a trial nor an
interruption changes what a model draws. Frameworks add their own.
"""

from __future__ import annotations

import base64
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np


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
    """Leave the global generators, and more, as they were found, whatever is drawn meanwhile."""
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

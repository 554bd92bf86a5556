"""Models in files: what is recorded of a saved one (`model.json`), and how to load it, in words and in Python (the
`README.md` beside every trained model); which tensors of a file a job may start from (`--weights`). No framework here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.catalog.models import is_own
from velodrome.errors import BadRequest, bytes_text
from velodrome.machine import available_memory
from velodrome.models.description import LARGEST_DESCRIPTION, check_description

README = "README.md"
DESCRIPTION = "model.json"
VOCABULARY = "vocabulary.json"
COLUMNS = "columns.json"
MODEL_FILES = {
    "model.keras": "the model with its weights, in Keras' own format",
    "model.weights.h5": "the weights alone, of a Keras model that cannot be saved as a whole",
    "model.safetensors": "the weights of a PyTorch model",
    DESCRIPTION: "what the model is: how it was built, its inputs and its outputs",
    COLUMNS: "what was done to the columns of the table that the model was trained on",
    VOCABULARY: "the words of a language model, in the order of their numbers",
    README: "how to load the model",
}
#: Arguments of the user's function that follow from the data.
_FROM_DATA = ("input_shape", "outputs", "classes")
_OUTPUTS = {
    "logits": "logits, one number per class",
    "softmax": "probabilities, one per class",
    "probabilities": "probabilities, one per class",
    "sigmoid": "one number from 0 to 1 per class, which do not add up to one",
}


def read_description(
    folder: Path, model: str | None = None, model_args: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What is recorded of the model in a folder; `OSError` or `ValueError` if that cannot be read.

    The record never chooses what is imported and called: it is refused unless it is of this model, which the job, or
    whoever loads it, names. Without a name it must be one of the zoo's. `model_args` take the place of those recorded.
    """
    files.refuse_special(folder)
    about = files.read_json(folder / DESCRIPTION, LARGEST_DESCRIPTION)
    if not isinstance(about, dict) or not isinstance(about.get("model"), str) or about.get("file") not in MODEL_FILES:
        raise ValueError(f"{folder / DESCRIPTION} describes no model")
    recorded = about["model"]
    if model is None and is_own(recorded):
        raise BadRequest(f"{str(folder / DESCRIPTION)!r} names code, {recorded!r}, and a file does not choose what "
                         f"runs: name the model yourself, as load(folder, {recorded!r})")
    if model is not None and recorded != model:
        raise BadRequest(f"{str(folder / DESCRIPTION)!r} describes model {recorded!r}, and the job names {model!r}: "
                         "one of the two was altered")
    check_description(about, folder)
    if model_args is not None:
        given = {name: about["arguments"][name] for name in _FROM_DATA if name in about.get("arguments", {})}
        about = {**about, "model_args": dict(model_args), "arguments": {**given, **model_args}}
    return about


def write_description(folder: Path, about: Mapping[str, Any], readme: str | None = None) -> None:
    """Write how to load a model and what it is: this last, so that a folder that describes a model is complete."""
    text = loading_recipe(about, folder.resolve()) if readme is None else readme
    files.write_text(folder / README, text, sync=False)
    files.write_text(folder / DESCRIPTION, json.dumps(about, indent=2) + "\n", sync=False)


def loading_recipe(about: Mapping[str, Any], folder: Path) -> str:
    """The text of `README.md`: `about` is what `model.json` holds."""
    lines = _keras_lines(about, folder) if about["engine"] == "tensorflow" else _torch_lines(about, folder)
    written = [about["file"], DESCRIPTION, README, *([VOCABULARY] if about.get("kind") == "text" else []),
               *([COLUMNS] if (folder / COLUMNS).exists() else [])]
    return "\n".join([
        f"# Model `{about['model']}`, trained by Velodrome", "",
        *_where_the_code_is(about),
        "```python", *lines, "```", "",
        *_inputs_and_outputs(about), "",
        "| file | what it holds |", "|---|---|",
        *(f"| `{name}` | {what} |" for name, what in MODEL_FILES.items() if name in written), "",
    ])


def zoo_recipe(about: Mapping[str, Any], folder: Path, loaded: str) -> str:
    """The same of an engine whose networks have the weights of PyTorch's zoo; `loaded` is what its `load` returns."""
    return "\n".join([
        f"# Model `{about['model']}`, trained by Velodrome", "",
        f"`{about['file']}` holds its weights under the names and in the layouts of PyTorch's zoo of Velodrome, so "
        "that both engines can start from them (`--weights`). In the environment of `velodrome engines install "
        f"{about['engine']}`:", "",
        "```python", "from pathlib import Path", "", f"from velodrome.engines.{about['engine']} import load", "",
        f"{loaded} = load(Path({str(folder)!r}))", "```", "",
    ])


def _where_the_code_is(about: Mapping[str, Any]) -> list[str]:
    """Which modules of the user must be importable."""
    names = sorted({place.partition(":")[0] for place in _places(about)})
    if not names:
        return []
    file = getattr(sys.modules.get(names[0]), "__file__", None)
    root = Path(file).resolve().parents[names[0].count(".")] if file else None
    from_root = f", which was imported from `{root}`" if root else ""
    listed = " and ".join(f"`{name}`" for name in names)
    return [f"Loading it needs {listed}{from_root}: run this there, or with that folder on `PYTHONPATH`.", ""]


def _places(about: Mapping[str, Any]) -> list[str]:
    """The user's functions and classes that loading calls, as module:name."""
    if not is_own(about["model"]):
        return []
    if about["file"] == "model.keras":
        return list(about["custom_objects"].values())
    return [about["model"]]


def _imports(about: Mapping[str, Any]) -> list[str]:
    return [f"import {name}" for name in sorted({place.partition(":")[0] for place in _places(about)})]


def arguments_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """What the function of a model on arrays was called with, back from its description."""
    arguments = dict(about["arguments"])
    if "input_shape" in arguments:
        arguments["input_shape"] = tuples(arguments["input_shape"])
    return arguments


def tuples(shape: Any) -> Any:
    """A shape, or shapes by name, after a round trip through JSON."""
    return {name: tuple(each) for name, each in shape.items()} if isinstance(shape, Mapping) else tuple(shape)


def building_arguments(about: Mapping[str, Any]) -> dict[str, Any]:
    """What the user's function was called with to build the model."""
    if about.get("kind") == "arrays":
        return arguments_of(about)
    return {"input_shape": tuple(about["input_shape"]), "classes": about["classes"], **about["model_args"]}


def first_inputs(about: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and format of what a Keras model is called with to create its weights, by the name of each input."""
    if about.get("kind") == "arrays":
        return {name: ((1, *column["shape"]), column["fed"]) for name, column in about["inputs"].items()}
    return {"x": ((about.get("only_batch") or 1, *about["input_shape"]), about["dtype"])}


def _call(about: Mapping[str, Any]) -> str:
    """The call of the user's function that builds the model."""
    words = ", ".join(f"{name}={value!r}" for name, value in building_arguments(about).items())
    return f"{about['model'].replace(':', '.')}({words})"


def _keras_lines(about: Mapping[str, Any], folder: Path) -> list[str]:
    path = repr(str(folder / about["file"]))
    if about["file"] == "model.keras":
        objects = ", ".join(f"{name!r}: {place.replace(':', '.')}" for name, place in about["custom_objects"].items())
        options = [*([f"custom_objects={{{objects}}}"] if objects else []), "compile=False",
                   *([] if about["safe_mode"] else ["safe_mode=False"])]
        return ["import keras", *_imports(about), "", f"model = keras.saving.load_model({path}, {', '.join(options)})"]
    zeros = {name: f"np.zeros({shape}, {form!r})" for name, (shape, form) in first_inputs(about).items()}
    several = ", ".join(f"{name!r}: {value}" for name, value in zeros.items())
    policy = about.get("policy", about["dtype"])  # Keras derives it from the float type only before the first layer
    first = f"{{{several}}}" if len(zeros) > 1 else next(iter(zeros.values()))
    return [
        "import keras", "import numpy as np", *_imports(about), "",
        *([] if about["dtype"] == "float32" else [f"keras.config.set_floatx({about['dtype']!r})"]),
        *([] if policy == "float32" else [f"keras.config.set_dtype_policy({policy!r})"]),
        f"model = {_call(about)}",
        f"model({first})  # creates the weights",
        f"model.load_weights({path})",
    ]


def _torch_lines(about: Mapping[str, Any], folder: Path) -> list[str]:
    lazy_arrays = about.get("kind") == "arrays" and about.get("lazy")
    if not is_own(about["model"]) or "input_shape" not in about or lazy_arrays:
        named = f", {about['model']!r}" if is_own(about["model"]) else ""
        return ["from pathlib import Path", "", "from velodrome.engines.torch.model_file import load", "",
                f"model = load(Path({str(folder)!r}){named})"]
    to_format = "" if about["dtype"] == "float32" else f".to(torch.{about['dtype']})"
    shape = ", ".join(map(str, (about.get("only_batch") or 1, *about["input_shape"])))
    strict = "" if about["strict"] else ", strict=False"
    lazy = f"model.eval()(torch.zeros({shape}, dtype=torch.{about['dtype']}))  # gives lazy layers their shape"
    return [
        *(["import torch"] if to_format or about.get("lazy") else []), "from safetensors.torch import load_file", "",
        *_imports(about), "",
        f"model = {_call(about)}{to_format}",
        *([lazy] if about.get("lazy") else []),
        f"model.load_state_dict(load_file({str(folder / about['file'])!r}){strict})",
        "model.eval()",
    ]


def _inputs_and_outputs(about: Mapping[str, Any]) -> list[str]:
    if about.get("kind") == "text" and "context" in about:
        return [f"It takes rows of at most {about['context']} words, as their places in `{VOCABULARY}`; it returns "
                "logits of the words that follow."]
    if about.get("kind") == "text":
        return [f"It takes rows of words, as their places in `{VOCABULARY}`, and the state of every row; it returns "
                "logits of the words that follow, and the new state."]
    if about.get("kind") == "arrays":
        return _arrays_and_outputs(about)
    if "outputs" not in about:  # of a task that describes its models itself
        return []
    offset = about.get("offset", 0)
    plus = f" plus {offset}" if _nonzero(offset) else ""
    shape = ", ".join(map(str, ("count", *about["input_shape"])))
    among = ", in `.logits`, under the key \"logits\" or first in a tuple" if about.get("several") else ""
    batch = f", {about['only_batch']} at a time," if about.get("only_batch") else ""
    trained = f" It was trained under `torch.autocast` in {about['autocast']}." if "autocast" in about else ""
    return [f"It takes images ({shape}){batch} in {about['dtype']}: each byte (0 to 255) times {about['scale']}{plus}. "
            f"It returns {_OUTPUTS[about['outputs']]}{among}.{trained}"]


def _arrays_and_outputs(about: Mapping[str, Any]) -> list[str]:
    shapes, kinds = about["input_shape"], {name: column["dtype"] for name, column in about["inputs"].items()}
    named = shapes if isinstance(shapes, Mapping) else {next(iter(kinds)): shapes}
    described = [
        f"`{name}` ({', '.join(map(str, ('count', *shape)))}) of {kinds[name]}" for name, shape in named.items()
    ]
    together = " in a dictionary" if isinstance(shapes, Mapping) else ""
    scaled = [f"A byte of an image is multiplied by {about['scale']}."] if "scale" in about else []
    returned = _OUTPUTS.get(about["outputs"]) if about["task"] == "classification" else (
        f"{about['returns']} numbers per example" if about["returns"] != 1 else "one number per example"
    )
    return [" ".join([f"It was trained for {about['task']}. It takes {', '.join(described)}{together}, numbers with "
                      f"fractions as {about['dtype']}, and returns {returned}.", *scaled])]


def _nonzero(offset: float | list[float]) -> bool:
    return any(offset) if isinstance(offset, list) else bool(offset)


Shape = tuple[int, ...]
#: Names that a sentence lists at most.
_LISTED = 8


def check_readable(file: str) -> None:
    """Refuse what is no regular file, or is larger than memory."""
    try:
        with files.open_regular(file) as stream:
            size = stream.seek(0, 2)
    except OSError as error:
        raise BadRequest(f"--weights {file!r} cannot be read: {error.strerror or error}") from None
    check_size(file, size)


def check_size(file: str, size: int) -> None:
    """Refuse weights of more bytes than memory has free."""
    if size > (free := available_memory()):
        raise BadRequest(
            f"--weights {file!r} holds {bytes_text(size)}, but only {bytes_text(free)} of memory are free here; choose "
            "a smaller file"
        )


@dataclass(frozen=True)
class Matching:
    """How the tensors of a file fit those of a model, by name."""

    file: str
    loaded: tuple[str, ...]
    #: In the model alone, in the file alone, and in both with two shapes: that of the file first.
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: Mapping[str, tuple[Shape, Shape]]

    @classmethod
    def of(cls, file: str, model: Mapping[str, Shape], stored: Mapping[str, Shape]) -> Matching:
        """Match names and shapes, or `BadRequest` if nothing matches."""
        both = [name for name in model if name in stored]
        matching = cls(
            file,
            tuple(name for name in both if model[name] == stored[name]),
            tuple(name for name in model if name not in stored),
            tuple(name for name in stored if name not in model),
            {name: (stored[name], model[name]) for name in both if model[name] != stored[name]},
        )
        if not matching.loaded:
            raise BadRequest(
                f"--weights {file!r}: none of its {len(stored)} tensors fits the model, which has {len(model)}; "
                + "; ".join(matching._differences())
            )
        return matching

    def notes(self) -> tuple[str, ...]:
        """What did not match, as a sentence; nothing if everything did."""
        differences = self._differences()
        if not differences:
            return ()
        tensors = len(self.loaded) + len(self.missing) + len(self.reshaped)
        return (f"--weights {self.file!r}: {len(self.loaded)} of the model's {tensors} tensors were loaded; "
                + "; ".join(differences),)

    def _differences(self) -> list[str]:
        shapes = [
            f"{name} ({_shape(theirs)} instead of {_shape(ours)})" for name, (theirs, ours) in self.reshaped.items()
        ]
        kinds = (
            ("missing in the file", self.missing), ("unexpected in the file", self.unexpected),
            ("of another shape", shapes),
        )
        return [f"{kind}: {_listed(names)}" for kind, names in kinds if names]


def _listed(names: tuple[str, ...] | list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _shape(shape: Shape) -> str:
    return "×".join(map(str, shape)) or "a single number"


def load_matching(
    file: str, shapes: Mapping[str, Shape], take: Callable[[str, Any], object], *, framework: str = "np",
    prefix: str = "",
) -> tuple[str, ...]:
    """Call `take` with the name and value of each tensor of a safetensors file that matches by name and shape; what did
    not match, as sentences. Names in the file may begin with the prefix. Only what matches is read, one at a time."""
    from safetensors import SafetensorError, safe_open  # the controller imports this module, too

    check_readable(file)
    try:
        with safe_open(file, framework=framework) as stored:
            names = {name.removeprefix(prefix): name for name in stored.keys()}  # noqa: SIM118 (not a mapping)
            stored_shapes = {name: tuple(stored.get_slice(given).get_shape()) for name, given in names.items()}
            matching = Matching.of(file, shapes, stored_shapes)
            for name in matching.loaded:
                take(name, stored.get_tensor(names[name]))
    except SafetensorError as error:
        raise BadRequest(f"--weights {file!r} is not a safetensors file: {error}") from error
    return matching.notes()

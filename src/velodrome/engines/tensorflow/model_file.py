"""A Keras model on disk: saved whole where Keras can read it back, else its weights; weights that it starts from.

`--weights` reads .keras, .weights.h5 or safetensors, never code. Keras' own formats hold a tree of arrays. The model is
saved in the same form, what fits in the file takes the place of its own arrays, and Keras loads the outcome: so its
names and order need not be known here."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from velodrome.catalog.models import is_own
from velodrome.errors import BadRequest
from velodrome.models.checks import preserved
from velodrome.models.description import check_unpacked
from velodrome.models.model_files import (
    README,
    Matching,
    building_arguments,
    check_readable,
    check_size,
    first_inputs,
    load_matching,
    read_description,
    tuples,
    write_description,
)
from velodrome.models.own import builder_of, split_name
from velodrome.training.trial import saving_problem

WHOLE, WEIGHTS, NAMED_WEIGHTS = "model.keras", "model.weights.h5", "model.safetensors"


@dataclass(frozen=True)
class Form:
    """The file that a model is saved in, and what loading it takes."""

    file: str = WHOLE
    #: The user's classes and functions that the file refers to, as module:name, by their names in it.
    custom_objects: Mapping[str, str] = field(default_factory=dict)
    #: Whether the file is free of Python code, which Keras loads only with `safe_mode=False`.
    safe_mode: bool = True


def save(folder: Path, model: keras.Model, form: Form, about: Mapping[str, Any]) -> None:
    """Write the model, how to load it, and what it is: this last, so that a folder with a description is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write(folder / form.file, model)
    except Exception as error:
        if form.file == WEIGHTS or isinstance(error, OSError):
            raise
        # The trial before training succeeded, but the training is worth more than the form.
        (folder / form.file).unlink(missing_ok=True)
        form = Form(WEIGHTS)
        _write(folder / WEIGHTS, model)
    _describe(folder, form, about)


def _write(file: Path, model: keras.Model) -> None:
    if file.name == WHOLE:
        model.compiled = False  # with what the user compiled it, it was not trained
        model.save(file)
    else:
        model.save_weights(file)


def _describe(folder: Path, form: Form, about: Mapping[str, Any]) -> None:
    described = {
        **about, "file": form.file, "custom_objects": dict(form.custom_objects), "safe_mode": form.safe_mode,
    }
    write_description(folder, described)


def load(folder: Path, name: str | None = None, arguments: Mapping[str, Any] | None = None) -> keras.Model:
    """Load a saved model. A model of your own is loaded only by its `name`, module:function, with the `arguments` that
    are recorded unless others are given. It takes images (count, height, width, channels), whose bytes were multiplied
    by `scale` of the description and added to its `offset`, or arrays as described; a language model takes words and,
    if it carries one, its state."""
    return restored(folder, read_description(folder, name, arguments))


def restored(folder: Path, about: Mapping[str, Any]) -> keras.Model:
    """The model of a folder whose description was read for the model that is expected there.

    It is built anew, by the zoo or by the user's function, and takes the weights of the file. A whole model of Keras
    may hold code, and names classes of any module: nothing but its weights is read.
    """
    if about["file"] == NAMED_WEIGHTS:
        return _load_named(folder, about)
    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    try:
        keras.config.set_floatx(about["dtype"])
        keras.config.set_dtype_policy(about.get("policy", about["dtype"]))
        model = _built(about)
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(policy)
    model.load_weights(folder / about["file"])
    return model


def _built(about: Mapping[str, Any]) -> keras.Model:
    from velodrome.models import keras_zoo

    if is_own(about["model"]):
        model = builder_of(about["model"])(**building_arguments(about))
        zeros = {name: np.zeros(shape, form) for name, (shape, form) in first_inputs(about).items()}
        model(zeros if len(zeros) > 1 else next(iter(zeros.values())))  # creates the weights
        return model
    if about.get("kind") == "text":
        return keras_zoo.build_text(about["model"], about["vocabulary"], about.get("context", 1))
    outputs = about["returns"] if about.get("kind") == "arrays" else about["classes"]
    return keras_zoo.build(about["model"], tuples(about["input_shape"]), outputs)


def _load_named(folder: Path, about: Mapping[str, Any]) -> keras.Model:
    """A model of the zoo whose weights Horovod's learner saved under the names that Keras gives them."""
    from safetensors.numpy import load_file

    from velodrome.models import keras_zoo

    stored = load_file(folder / NAMED_WEIGHTS)
    keras.utils.clear_session()  # Keras numbers layers of the same kind from the first that a process makes
    before = keras.config.floatx()
    try:
        keras.config.set_floatx(about["dtype"])
        model = keras_zoo.build(about["model"], tuple(about["input_shape"]), about["classes"])
    finally:
        keras.config.set_floatx(before)
    for variable in model.weights:
        variable.assign(stored[variable.path.removeprefix(f"{about['model']}/")])
    return model


def choose_form(
    name: str, model: keras.Model, about: Mapping[str, Any], images: tf.Tensor, folder: Path
) -> tuple[Form, tuple[str, ...]]:
    """The form in which a user's model can be saved and loaded, by trying it in a folder below `folder`; and what the
    user should know about it, as sentences."""
    whole, problem = _tried(model, about, images, folder, whole=True)
    if whole is not None:
        return whole, ()
    weights, second = _tried(model, about, images, folder, whole=False)
    written = f"its weights will be written to model/{WEIGHTS}"
    if weights is not None:
        return weights, (
            f"Keras cannot save and load model {name!r} as a whole ({problem}): {written}, and model/{README} explains "
            "how to load them",
        )
    return Form(WEIGHTS), (
        f"model {name!r} could not be loaded after saving it, neither as a whole ({problem}) nor into a model that "
        f"your function built again ({second}): {written} anyway",
    )


def _tried(
    model: keras.Model, about: Mapping[str, Any], images: tf.Tensor, folder: Path, *, whole: bool
) -> tuple[Form | None, str]:
    """The form, if a model that was saved in it and loaded again is the same; else why it is not."""
    form = Form(WEIGHTS)

    def problem_in(trial: Path) -> str | None:
        nonlocal form
        _write(trial / (WHOLE if whole else WEIGHTS), model)
        if whole:
            form = _needs_of(trial / WHOLE, about["model"])
        _describe(trial, form, about)
        loaded = _as_described(trial, form) if whole else load(trial, about["model"])
        return _difference(model, loaded, images)

    with preserved():
        problem = saving_problem(folder, problem_in)
    return (None, problem) if problem else (form, "")


def _as_described(folder: Path, form: Form) -> keras.Model:
    """A whole model that this process has saved, loaded as its README describes."""
    objects = {name: builder_of(place) for name, place in form.custom_objects.items()}
    return keras.saving.load_model(
        folder / WHOLE, custom_objects=objects, compile=False, safe_mode=form.safe_mode
    )


def _needs_of(file: Path, model: str) -> Form:
    """What loading a whole model takes: found in its file."""
    with zipfile.ZipFile(file) as archive:
        config = json.loads(archive.read("config.json"))
    objects, modules, safe = {}, [split_name(model)[0]], True
    entries = [entry for entry in _entries(config) if "class_name" in entry]
    for entry in entries:
        kind, module = entry["class_name"], entry.get("module")
        if kind == "__lambda__":
            safe = False
        elif kind != "function" and module and module.partition(".")[0] not in ("keras", "builtins"):
            modules.append(module)
            objects[entry.get("registered_name") or kind] = _importable(kind, [module])
    for entry in entries:
        if entry["class_name"] == "function" and isinstance(entry.get("config"), str):
            objects[entry["config"]] = _importable(entry["config"].rpartition(">")[2], modules)
    return Form(WHOLE, objects, safe)


def _entries(config: Any) -> Iterator[dict[str, Any]]:
    if isinstance(config, dict):
        yield config
        config = list(config.values())
    for entry in config if isinstance(config, list) else ():
        yield from _entries(entry)


def _importable(name: str, modules: list[str]) -> str:
    """Where a class or function can be imported from, as module:name."""
    for module in modules:
        with suppress(BadRequest):
            builder_of(f"{module}:{name}")
            return f"{module}:{name}"
    raise LookupError(f"{name!r} cannot be imported from module {' or '.join(map(repr, dict.fromkeys(modules)))}")


def _difference(model: keras.Model, loaded: keras.Model, images: tf.Tensor) -> str | None:
    """In what a loaded model differs from the one that was saved; None if it does not."""
    ours, theirs = ([np.asarray(weight) for weight in each.weights] for each in (model, loaded))
    if [weight.shape for weight in ours] != [weight.shape for weight in theirs]:
        return "it has other weights after loading"
    if not all(np.array_equal(saved, read) for saved, read in zip(ours, theirs, strict=True)):
        return "not all of its weights are restored"
    with keras.StatelessScope():
        before, again, after = (_tensors(each(images, training=False)) for each in (model, model, loaded))
    # A model that draws random numbers cannot be compared.
    same = not _close(before, again) or _close(before, after)
    return None if same else "it computes something else after loading"


def _tensors(outputs: Any) -> list[Any]:
    """The tensors among what a model returned, also of an object that has them as attributes."""
    tensors = []
    for value in tf.nest.flatten(outputs):
        inner = [value] if tf.is_tensor(value) else tf.nest.flatten(getattr(value, "__dict__", {}))
        tensors += [np.asarray(tensor) for tensor in inner if tf.is_tensor(tensor)]
    return tensors


def _close(ours: list[Any], theirs: list[Any]) -> bool:
    """Whether outputs are the same but for rounding."""
    return len(ours) == len(theirs) and all(
        output.shape == other.shape and np.allclose(output, other, atol=1e-4 * float(np.abs(output).max(initial=0)))
        for output, other in zip(ours, theirs, strict=True)
    )


#: The member of a .keras file that holds its weights.
_MEMBER = "model.weights.h5"


def load_given(model: keras.Model, file: str) -> tuple[str, ...]:
    """Copy what matches by name and shape into the model; what did not match, as sentences."""
    if file.lower().endswith(".safetensors"):
        # Variables are named by their paths, such as `dense/kernel`; some begin with the model's name.
        prefix = f"{model.name}/"
        places = {variable.path.removeprefix(prefix): variable for variable in model.variables}
        shapes = {name: tuple(place.shape) for name, place in places.items()}
        return load_matching(file, shapes, lambda name, value: places[name].assign(value), prefix=prefix)
    check_readable(file)
    with tempfile.TemporaryDirectory(prefix="velodrome-weights-") as folder:
        stored, ours = Path(file), Path(folder) / "ours.weights.h5"
        if file.lower().endswith(".keras"):
            stored = _extracted(file, Path(folder) / "theirs.weights.h5")
        model.save_weights(ours)
        try:
            with h5py.File(stored, "r") as theirs, h5py.File(ours, "r+") as mine:
                given, places = _arrays(theirs), _arrays(mine)
                matching = Matching.of(file, *({name: held[name].shape for name in held} for held in (places, given)))
                for name in matching.loaded:
                    places[name][...] = given[name][...]
        except OSError as error:
            raise BadRequest(f"--weights {file!r} cannot be read as weights of Keras: {error}") from error
        model.load_weights(ours)
    return matching.notes()


def _arrays(file: h5py.File) -> dict[str, h5py.Dataset]:
    """The arrays of a file by their places in it."""
    arrays: dict[str, h5py.Dataset] = {}

    def visit(name: str, node: object) -> None:
        # Arrays that lie in other files are not followed, and neither are links.
        if isinstance(node, h5py.Dataset) and not node.external and not node.is_virtual and node.dtype.kind in "fiub":
            arrays[name] = node

    file.visititems(visit)
    return arrays


def _extracted(file: str, place: Path) -> Path:
    """The weights of a .keras file, as a file of their own."""
    try:
        check_unpacked(file, file)
        with zipfile.ZipFile(file) as archive:
            check_size(file, archive.getinfo(_MEMBER).file_size)
            with archive.open(_MEMBER) as member, place.open("wb") as written:
                shutil.copyfileobj(member, written)
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError) as error:
        raise BadRequest(f"--weights {file!r} is not a file that Keras wrote: {error}") from error
    return place



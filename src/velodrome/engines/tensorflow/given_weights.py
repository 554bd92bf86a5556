"""Weights that a Keras model starts from (`--weights`): read from .keras, .weights.h5 or safetensors, never from code.

Keras' own formats hold a tree of arrays. The model is saved in the same form, what fits in the file takes the place of
its own arrays, and Keras loads the outcome: so its names and order need not be known here.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path

import h5py
import keras
from safetensors import SafetensorError, safe_open

from velodrome.errors import BadRequest
from velodrome.models.description import check_unpacked
from velodrome.models.initial_weights import Matching, check_readable, check_size

#: The member of a .keras file that holds its weights.
_MEMBER = "model.weights.h5"


def load(model: keras.Model, file: str) -> tuple[str, ...]:
    """Copy what matches by name and shape into the model; what did not match, as sentences."""
    check_readable(file)
    if file.lower().endswith(".safetensors"):
        return _from_safetensors(model, file).notes()
    with tempfile.TemporaryDirectory(prefix="velodrome-weights-") as folder:
        stored, ours = Path(file), Path(folder) / "ours.weights.h5"
        if file.lower().endswith(".keras"):
            stored = _extracted(file, Path(folder) / "theirs.weights.h5")
        model.save_weights(ours)
        try:
            with h5py.File(stored, "r") as theirs, h5py.File(ours, "r+") as mine:
                found, places = _arrays(theirs), _arrays(mine)
                matching = Matching.of(file, *({name: held[name].shape for name in held} for held in (places, found)))
                for name in matching.loaded:
                    places[name][...] = found[name][...]
        except OSError as error:
            raise BadRequest(f"--weights {file!r} cannot be read as weights of Keras: {error}") from error
        model.load_weights(ours)
    return matching.notes()


def _arrays(file: h5py.File) -> dict[str, h5py.Dataset]:
    """The arrays of a file by their places in it."""
    found: dict[str, h5py.Dataset] = {}

    def visit(name: str, node: object) -> None:
        # Arrays that lie in other files are not followed, and neither are links.
        if isinstance(node, h5py.Dataset) and not node.external and not node.is_virtual and node.dtype.kind in "fiub":
            found[name] = node

    file.visititems(visit)
    return found


def _extracted(file: str, place: Path) -> Path:
    """The weights of a .keras file, as a file of their own."""
    try:
        check_unpacked(file, file)
        with zipfile.ZipFile(file) as archive:
            check_size(file, archive.getinfo(_MEMBER).file_size)
            with archive.open(_MEMBER) as member, place.open("wb") as written:
                shutil.copyfileobj(member, written)
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError) as error:
        raise BadRequest(f"--weights {file!r} is no file that Keras wrote: {error}") from error
    return place


def _from_safetensors(model: keras.Model, file: str) -> Matching:
    """Match arrays with the variables of a model by their paths, such as `dense/kernel`; some begin with its name."""
    prefix = f"{model.name}/"
    places = {variable.path.removeprefix(prefix): variable for variable in model.variables}
    try:
        with safe_open(file, framework="numpy") as stored:
            names = {name.removeprefix(prefix): name for name in stored.keys()}  # noqa: SIM118 (not a mapping)
            shapes = {name: tuple(stored.get_slice(given).get_shape()) for name, given in names.items()}
            matching = Matching.of(file, {name: tuple(place.shape) for name, place in places.items()}, shapes)
            for name in matching.loaded:
                places[name].assign(stored.get_tensor(names[name]))
    except SafetensorError as error:
        raise BadRequest(f"--weights {file!r} is no file of safetensors: {error}") from error
    return matching

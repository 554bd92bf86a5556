"""Reads the weights that a job starts from (`--weights`) as NumPy arrays, for engines that keep them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from velodrome.errors import BadRequest
from velodrome.models.given_weights import Matching, Shape, check_readable


def read_matching(file: str, shapes: Mapping[str, Shape]) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """The arrays of a safetensors file that match by name and shape; what did not match, as sentences."""
    check_readable(file)
    try:
        with safe_open(file, framework="np") as stored:
            found = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
            matching = Matching.of(file, shapes, found)
            return {name: stored.get_tensor(name) for name in matching.loaded}, matching.notes()
    except SafetensorError as error:
        raise BadRequest(f"--weights {file!r} is no file of safetensors: {error}") from error

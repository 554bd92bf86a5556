"""The zoo in Keras: sizes as published, initial weights as Keras draws them, shapes it cannot take refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from velodrome.errors import BadRequest

pytestmark = pytest.mark.unit

PARAMETERS = {"linear": 7_850, "dense-128": 101_770, "dense-300-100": 266_610, "lenet5": 431_080}


@pytest.fixture(scope="module")
def zoo() -> Any:
    pytest.importorskip("tensorflow")
    from velodrome.models import keras_zoo

    return keras_zoo


@pytest.mark.parametrize("name", PARAMETERS)
def test_models_have_their_number_of_parameters_and_answer_with_logits(zoo: Any, name: str) -> None:
    model = zoo.build(name, input_shape=(28, 28, 1), classes=10)
    assert model.count_params() == PARAMETERS[name]
    outputs = np.asarray(model(np.random.default_rng(1).random((5, 28, 28, 1), np.float32)))
    assert outputs.shape == (5, 10)
    assert (outputs < 0).any()


def test_kernels_begin_uniform_within_glorots_limit_and_biases_at_zero(zoo: Any) -> None:
    model = zoo.build("dense-300-100", input_shape=(28, 28, 1), classes=10)
    kernel, bias = (np.asarray(variable) for variable in model.trainable_variables[:2])
    limit = np.sqrt(6 / (784 + 300))
    assert not bias.any()
    assert np.abs(kernel).max() <= limit
    assert kernel.std() == pytest.approx(limit / np.sqrt(3), rel=0.02)


def test_images_that_are_too_small_are_refused(zoo: Any) -> None:
    with pytest.raises(BadRequest, match="at least 16×16"):
        zoo.build("lenet5", input_shape=(8, 8, 1), classes=10)

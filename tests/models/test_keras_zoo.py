"""The zoo in Keras: sizes as published, initial weights as Keras draws them, shapes it cannot take refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from velodrome.errors import BadRequest

pytestmark = pytest.mark.unit

PARAMETERS = {"linear": 7_850, "dense-128": 101_770, "dense-300-100": 266_610, "lenet5": 431_080,
              "vgg-small": 4_290_954}


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


def test_the_network_for_photos_augments_in_training_only(zoo: Any) -> None:
    model = zoo.build("fruit-cnn", input_shape=(100, 100, 3), classes=15)
    convolutions = (27 * 16 + 16) + (144 * 32 + 32) + (288 * 64 + 64) + (576 * 64 + 64)
    assert sum(int(np.prod(each.shape)) for each in model.trainable_variables) == (
        convolutions + (6 * 6 * 64 * 128 + 128) + (128 * 15 + 15)
    )
    images = np.random.default_rng(1).random((4, 100, 100, 3), np.float32)
    calm, again, lively = (np.asarray(model(images, training=training)) for training in (False, False, True))
    assert (calm == again).all()
    assert np.abs(calm - lively).max() > 1e-4


def test_the_language_model_has_the_published_size_and_begins_uniform(zoo: Any) -> None:
    model = zoo.build_text("lstm-small", 10_000)
    lstm = (200 + 200) * 800 + 800
    assert model.count_params() == 10_000 * 200 + 2 * lstm + 200 * 10_000 + 10_000 == 4_651_600
    for variable in model.trainable_variables:
        value = np.asarray(variable)
        assert np.abs(value).max() <= 0.1
        assert value.std() == pytest.approx(0.1 / np.sqrt(3), rel=0.1)


def test_resnet20_and_gpt_mini_start_as_in_pytorch(zoo: Any) -> None:
    model = zoo.build("resnet20", input_shape=(32, 32, 3), classes=10)
    assert sum(int(np.prod(each.shape)) for each in model.trainable_variables) == 269_722
    for variable in model.trainable_variables:
        if "kernel" in variable.path:
            fan_in = np.prod(variable.shape[:-1])
            assert np.asarray(variable).std() == pytest.approx(np.sqrt(2 / fan_in), rel=0.15)
    model = zoo.build_text("gpt-mini", 10_000, context=64)
    assert model.count_params() == (10_000 + 64) * 128 + 4 * (12 * 128**2 + 13 * 128) + 2 * 128
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:
            added = any(name in variable.path for name in ("attended", "contract"))
            expected = 0.02 / np.sqrt(8) if added else 0.02
            assert np.asarray(variable).std() == pytest.approx(expected, rel=0.05), variable.path


def test_a_network_of_images_reads_no_text(zoo: Any) -> None:
    with pytest.raises(BadRequest, match="reads images"):
        zoo.build_text("lenet5", 10_000)

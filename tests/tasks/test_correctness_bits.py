"""Which test examples were right survives the sum over processes and the way into a result."""

from __future__ import annotations

import base64
import tracemalloc
import zlib

import numpy as np
import pytest

from velodrome.tasks import correctness_bits
from velodrome.tasks.schedule import evaluation_indices

pytestmark = pytest.mark.unit


def _random(count: int) -> np.ndarray:
    return np.random.default_rng(count).random(count) < 0.7


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 5, 8, 31, 48, 359, 10_000])
def test_the_sum_over_workers_has_every_answer_in_the_order_of_the_test_set(count: int, workers: int) -> None:
    right = _random(count)
    parts = []
    for rank in range(workers):
        mine = evaluation_indices(count, rank, workers)
        own = np.zeros(count, np.bool_)
        own[mine] = right[mine]
        parts.append(correctness_bits.to_vector(own))
    assert (correctness_bits.from_vector(np.sum(parts, axis=0), count) == right).all()


@pytest.mark.parametrize("right", [_random(1), _random(359), np.ones(48, np.bool_), np.zeros(10, np.bool_)])
def test_answers_are_read_as_they_were_written(right: np.ndarray) -> None:
    assert (correctness_bits.decode(correctness_bits.encode(right), len(right)) == right).all()


def test_ten_thousand_answers_take_less_than_two_kilobytes() -> None:
    assert len(correctness_bits.encode(_random(10_000))) < 2_000


@pytest.mark.parametrize("text", [
    pytest.param("%", id="not base64"), pytest.param("AAAA", id="not compressed"),
    pytest.param(correctness_bits.encode(np.ones(400, np.bool_)), id="of more examples"),
    pytest.param(correctness_bits.encode(np.ones(350, np.bool_)), id="of fewer examples"),
    pytest.param(correctness_bits.encode(np.ones(360, np.bool_)), id="one bit too many"),
    pytest.param(correctness_bits.encode(np.ones(359, np.bool_))[:-8], id="cut off"),
    pytest.param(base64.b64encode(zlib.compress(bytes(10**7))).decode(), id="much more than there can be"),
])
def test_what_is_not_an_answer_for_each_example_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="answers"):
        correctness_bits.decode(text, 359)


@pytest.mark.parametrize("count", [-1, -8, 2**40, 10**400], ids=["negative", "none", "a terabit", "400 digits"])
def test_a_number_of_examples_that_no_test_set_has_is_refused_before_anything_is_unpacked(count: int) -> None:
    text = base64.b64encode(zlib.compress(bytes(50 << 20))).decode()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"the answers of .* examples are not read"):
            correctness_bits.decode(text, count)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_fingerprint_tells_test_sets_apart() -> None:
    random = np.random.default_rng(1)
    images, labels = random.integers(0, 256, (100, 4, 4, 1), np.uint8), random.integers(0, 10, 100)
    found = correctness_bits.fingerprint(images, labels)
    assert found == correctness_bits.fingerprint(images.copy(), labels.astype(np.int64))
    other_labels, other_images = labels.copy(), images.copy()
    other_labels[50] = (labels[50] + 1) % 10
    other_images[99, 0, 0, 0] ^= 1
    assert found != correctness_bits.fingerprint(images, other_labels)
    assert found != correctness_bits.fingerprint(other_images, labels)
    assert found != correctness_bits.fingerprint(images[:99], labels[:99])

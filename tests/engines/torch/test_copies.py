"""A batch of float data is copied no more often than one of bytes: gathered once, and nothing after that."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from velodrome.data.examples import ExamplePart, ExampleSet  # noqa: E402
from velodrome.data.pixels import transform_of_arrays  # noqa: E402
from velodrome.engines.torch.feed import Columns, part_of  # noqa: E402

pytestmark = pytest.mark.unit
COUNT, SHAPE = 60, (8, 8, 3)
ORDER, OFFSETS = np.arange(COUNT, dtype=np.int64)[::-1].copy(), np.arange(0, COUNT + 1, 20)


class Copies(TorchDispatchMode):
    """Counts the operations that write a batch into memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        is_batch = isinstance(result, torch.Tensor) and result.numel() >= 20 * np.prod(SHAPE)
        if is_batch and result.untyped_storage().data_ptr() not in given:
            self.made.append(str(function))
        return result


def copies_of_a_batch(array, tmp_path, *, mapped, images, channels_last):
    """The operations that copy a batch of training examples, and the batch."""
    if mapped:
        np.save(tmp_path / "x.npy", array)
        array = np.load(tmp_path / "x.npy", mmap_mode="r")
    part = ExamplePart({"x": array}, {"y": np.arange(COUNT) % 2})
    data = ExampleSet("some", part, part, part, classes=2, images=frozenset(["x"] if images else []))
    device = torch.device("cpu")
    columns = Columns(data, torch.float32, device, channels_last=channels_last,
                      pixels=transform_of_arrays("unit", data))  # fmt: skip
    feed = part_of(part, columns, device)
    feed.begin(ORDER, OFFSETS)
    with Copies() as copies:
        batch = feed.batch(0, 20)
    return copies.made, batch.x


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
def test_floats_are_copied_no_more_often_than_bytes(tmp_path, mapped, channels_last, images):
    random = np.random.default_rng(1)
    pixels = random.integers(0, 256, (COUNT, *SHAPE), dtype=np.uint8)
    floats = random.random((COUNT, *SHAPE), dtype=np.float32)
    where = {"mapped": mapped, "channels_last": channels_last}
    of_bytes, _ = copies_of_a_batch(pixels, tmp_path, images=True, **where)
    of_floats, batch = copies_of_a_batch(floats, tmp_path, images=images, **where)
    assert len(of_floats) <= len(of_bytes)
    # Rows of what is mapped are gathered by NumPy, before the first tensor is made.
    assert of_floats == ([] if mapped else ["aten.index_select.default"])
    expected = floats[ORDER[:20]].transpose(0, 3, 1, 2) if images else floats[ORDER[:20]]
    assert np.array_equal(batch.numpy(), expected)

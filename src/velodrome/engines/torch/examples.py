"""Examples as the network takes them: bytes held once as a tensor, gathered and scaled batch by batch."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from velodrome.data.splits import Part


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    with warnings.catch_warnings():
        # Mapped or shared data cannot be written to, and is not: no copy is needed.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array).to(device)


class Examples:
    """One part of a data set on a device."""

    def __init__(
        self, part: Part, scale: float, dtype: torch.dtype, device: torch.device, *, channels_last: bool
    ) -> None:
        # Our own networks take channels-last memory, which convolutions on a CPU want; a user's may not (`view` fails).
        images = part.images if channels_last else np.ascontiguousarray(part.images.transpose(0, 3, 1, 2))
        self._images = _tensor(np.ascontiguousarray(images), device)
        self._labels = _tensor(np.ascontiguousarray(part.labels, dtype=np.int64), device)
        self._scale, self._dtype, self._channels_last = scale, dtype, channels_last

    def __len__(self) -> int:
        return len(self._labels)

    def images(self, indices: torch.Tensor) -> torch.Tensor:
        """Images (count, channels, height, width) with values from 0 to 1."""
        chosen = self._images.index_select(0, indices).to(self._dtype).mul_(self._scale)
        return chosen.permute(0, 3, 1, 2) if self._channels_last else chosen

    def labels(self, indices: torch.Tensor) -> torch.Tensor:
        return self._labels.index_select(0, indices)

"""How bytes become the input of a model, batch by batch: one pass to convert them, one to scale them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from velodrome.data.pixels import PixelTransform

Converter = Callable[[torch.Tensor], torch.Tensor]


def converter(
    transform: PixelTransform, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, *,
    channels_last: bool,
) -> Converter:
    """A function of bytes of images of (channels, height, width), stored in that order or with the channels last."""
    if transform.is_plain:
        (scale,) = transform.factor
        if scale == 1:
            return lambda pixels: pixels.to(dtype)
        return lambda pixels: pixels.to(dtype).mul_(scale)
    # As large as an image: with a number a channel, which PyTorch would repeat, it takes five to ten times longer.
    factor, offset = (
        torch.tensor(values, dtype=dtype, device=device)[:, None, None].expand(shape)
        for values in (transform.factor, transform.offset)
    )
    if channels_last:
        factor, offset = factor.permute(1, 2, 0), offset.permute(1, 2, 0)
    factor, offset = factor.contiguous(), offset.contiguous()

    def standardized(pixels: torch.Tensor) -> torch.Tensor:
        numbers = pixels.to(dtype)
        return torch.addcmul(offset, numbers, factor, out=numbers)

    return standardized

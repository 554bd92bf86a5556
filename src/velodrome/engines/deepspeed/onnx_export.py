"""A model that was trained by DeepSpeed is a PyTorch model, and is exported as one."""

from __future__ import annotations

from velodrome.engines.torch.onnx_export import NEEDS, export

__all__ = ["NEEDS", "export"]

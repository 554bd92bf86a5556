"""Models in the forms in which PyTorch users publish them: nothing in them but `build` knows of Velodrome."""

from __future__ import annotations

import math
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

Shape = tuple[int, int, int]


class DigitNet(nn.Module):
    """Two convolutions and dropout, ending in log-probabilities for `F.nll_loss`."""

    def __init__(self, channels: int, side: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 3, 1)
        self.conv2 = nn.Conv2d(6, 12, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)
        self.fc1 = nn.Linear(12 * ((side - 4) // 2) ** 2, 24)
        self.fc2 = nn.Linear(24, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        return F.log_softmax(self.fc2(x), dim=1)


class BasicBlock(nn.Module):
    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.layer1, self.layer2 = BasicBlock(8, 8), BasicBlock(8, 16, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, dim))


class ViTBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches by a convolution, a class token, learned positions, and a head on the class token."""

    def __init__(self, shape: Shape, classes: int, patch: int = 4, dim: int = 16, depth: int = 2) -> None:
        super().__init__()
        channels, height, width = shape
        self.patch_embed = nn.Conv2d(channels, dim, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + (height // patch) * (width // patch), dim) * 0.02)
        self.blocks = nn.Sequential(*(ViTBlock(dim, 2) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class Tied(nn.Module):
    """An encoder whose weights the decoder uses again: one parameter under two names."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(pixels, 20, bias=False), nn.Linear(20, pixels, bias=False)
        self.decoder.weight = nn.Parameter(self.encoder.weight.t().contiguous())
        self.again = nn.Linear(pixels, 20, bias=False)
        self.again.weight = self.encoder.weight
        self.head = nn.Linear(20, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.encoder(x.flatten(1)))
        return self.head(torch.tanh(self.again(self.decoder(hidden))))


class FineTuned(nn.Module):
    """A frozen backbone, a new head, and a head of the old task that nothing uses any more."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 16), nn.Tanh())
        for parameter in self.backbone.parameters():
            parameter.requires_grad = False
        self.old_head, self.head = nn.Linear(16, 1000), nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


class Constants(nn.Module):
    """Normalises by constants, and looks positions up: buffers of every kind that no step changes."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.register_buffer("mean", torch.full((channels, 1, 1), 0.1307))
        self.register_buffer("std", torch.full((channels, 1, 1), 0.3081))
        self.register_buffer("position_ids", torch.arange(height * width).expand((1, -1)), persistent=False)
        angles = torch.arange(height * width)[:, None] / math.pi ** torch.arange(8)
        self.register_buffer("table", torch.sin(angles))
        self.register_buffer("gain", torch.tensor(0.5).expand(8))  # one number in memory
        self.scale = nn.Linear(1, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = ((x - self.mean) / self.std).mean(1).flatten(1)
        embedded = self.table[self.position_ids] * self.scale(x[:, :, None])
        return self.head(torch.tanh(self.gain * embedded).mean(1))


GoogLeNetOutputs = namedtuple("GoogLeNetOutputs", ["logits", "aux_logits2", "aux_logits1"])


class Auxiliary(nn.Module):
    """Returns auxiliary classifiers' outputs in training, and the logits alone in evaluation."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.stem, self.fc = nn.Linear(pixels, 16), nn.Linear(16, classes)
        self.aux1, self.aux2 = nn.Linear(16, classes), nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.stem(x.flatten(1)))
        return GoogLeNetOutputs(self.fc(x), self.aux2(x), self.aux1(x)) if self.training else self.fc(x)


class Packed(nn.Module):
    """Returns its logits as one of several things, in one of several containers."""

    def __init__(self, pixels: int, classes: int, form: str) -> None:
        super().__init__()
        self.body, self.head, self.form = nn.Linear(pixels, 12), nn.Linear(12, classes), form

    def forward(self, x: torch.Tensor) -> Any:
        hidden = torch.tanh(self.body(x.flatten(1)))
        logits = self.head(hidden)
        match self.form:
            case "dictionary":
                return {"features": hidden, "logits": logits}
            case "tuple":
                return logits, hidden
            case "object":
                return SimpleNamespace(loss=None, logits=logits, hidden_states=(hidden,))
            case "softmax":
                return {"logits": torch.softmax(logits, 1)}
        return logits


def build(input_shape: Shape, classes: int, kind: str, **arguments: Any) -> nn.Module:
    channels, height, width = input_shape
    pixels = channels * height * width
    match kind:
        case "digits":
            return DigitNet(channels, height, classes, **{"dropout": 0.25, **arguments})
        case "resnet":
            return ResNet(channels, classes)
        case "vit":
            return VisionTransformer(input_shape, classes)
        case "constants":
            return Constants(input_shape, classes)
    return {"tied": Tied, "fine-tuned": FineTuned, "auxiliary": Auxiliary, "packed": Packed}[kind](
        pixels, classes, **arguments
    )


def changing(input_shape: Shape, classes: int, kind: str = "shape") -> nn.Module:
    """A function that builds another model each time that it is called: what it saves cannot be loaded."""
    changing.calls = getattr(changing, "calls", 0) + 1  # type: ignore[attr-defined]
    pixels, calls = math.prod(input_shape), changing.calls  # type: ignore[attr-defined]
    if kind == "shape":
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 10 + calls), nn.Linear(10 + calls, classes))
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes), nn.Sigmoid() if calls > 1 else nn.Tanh())

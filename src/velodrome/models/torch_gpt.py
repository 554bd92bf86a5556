"""A small decoder-only transformer in PyTorch, arranged as GPT-2 is: normalisation first, learned positions, GELU.

Words come as their places in a vocabulary, in rows of at most `context`; no row depends on what was read before it.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as functional
from torch import nn

LAYERS, WIDTH, HEADS = 4, 128, 4
#: Standard deviation of the initial weights; that of layers whose outputs are added to the residual stream is divided
#: by the square root of their number, as in GPT-2.
DEVIATION = 0.02


class Block(nn.Module):
    """Attention to the words so far, then two dense layers, each around a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        rows, columns, width = stream.shape
        # Of all heads, or of some where the layers are divided over processes.
        split = self.qkv(self.norm1(stream)).view(rows, columns, 3, -1, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.attended(heads.transpose(1, 2).flatten(2))
        return stream + self.contract(functional.gelu(self.expand(self.norm2(stream))))


class Gpt(nn.Module):
    """Takes words (rows, columns); returns logits of the words that follow (rows, columns, vocabulary).

    The embedding of a word is also its row of the softmax, which has no bias.
    """

    def __init__(self, vocabulary: int, context: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(context, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                added = name.endswith(("attended.weight", "contract.weight"))
                nn.init.normal_(parameter, std=DEVIATION / (math.sqrt(2 * LAYERS) if added else 1.0))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        stream = self.words(words) + self.positions.weight[: words.shape[1]]
        for block in self.blocks:
            stream = block(stream)
        return functional.linear(self.norm(stream), self.words.weight)

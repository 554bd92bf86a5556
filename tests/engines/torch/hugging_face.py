"""Models and a task as users of Hugging Face's `transformers` have them: built from a configuration, not downloaded."""

from __future__ import annotations

from typing import Any

from torch import nn

WORDS, LENGTH = 40, 10


def bert(classes: int, dropout: float = 0.0) -> nn.Module:
    """A classifier of sequences. It returns objects with `.loss` and `.logits`; its positions are a constant buffer."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=LENGTH, num_labels=classes, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    ))


def gpt2() -> nn.Module:
    """A language model whose embedding is also its last layer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    ))


class NextWord:
    """The loss that the model computes itself from `labels`: a mean over all words but the first of each sequence."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        words = batch.x
        count = words.shape[0] * (words.shape[1] - 1)
        return model(words, labels=words).loss * count, count

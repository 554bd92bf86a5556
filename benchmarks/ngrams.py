"""What a language model has to be better than: perplexities of a unigram and a bigram model of the same text.

    .venv/bin/python benchmarks/ngrams.py --dataset ptb

Both predict what Velodrome's language models predict: every word of the test text but the first, once.
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int32]


def perplexity(chances: NDArray[np.float64]) -> float:
    return math.exp(-float(np.log(chances).mean()))


def unigram_chances(train: Words, test: Words, vocabulary: int) -> NDArray[np.float64]:
    """The chance of every word but the first by its count in training, plus one (Laplace)."""
    counts = np.bincount(train, minlength=vocabulary) + 1.0
    return (counts / counts.sum())[test[1:]]


def bigram_chances(train: Words, test: Words, vocabulary: int) -> NDArray[np.float64]:
    """The chance of every word but the first after the word before it: interpolated Kneser-Ney.

    A discount of n₁ / (n₁ + 2 n₂) is subtracted from the count of every pair, where n₁ and n₂ pairs occur once and
    twice. What that leaves is divided by the number of different words that each word was seen after, plus one.
    """
    seen, counts = np.unique(train[:-1].astype(np.int64) * vocabulary + train[1:], return_counts=True)
    before, after = seen // vocabulary, seen % vocabulary
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    discount = once / (once + 2 * twice) if once else 0.5
    histories = np.bincount(train[:-1], minlength=vocabulary).astype(np.float64)
    followers = np.bincount(before, minlength=vocabulary)
    continuations = np.bincount(after, minlength=vocabulary) + 1.0
    continuations /= continuations.sum()
    asked = test[:-1].astype(np.int64) * vocabulary + test[1:]
    place = np.minimum(np.searchsorted(seen, asked), len(seen) - 1)
    found = np.where(seen[place] == asked, counts[place] - discount, 0.0)
    history = histories[test[:-1]]
    known = np.maximum(history, 1.0)
    left = np.where(history > 0, discount * followers[test[:-1]] / known, 1.0)
    return found / known + left * continuations[test[1:]]


def baselines(train: Words, test: Words, vocabulary: int) -> dict[str, float]:
    """Test perplexities by model."""
    return {
        "unigram": perplexity(unigram_chances(train, test, vocabulary)),
        "bigram": perplexity(bigram_chances(train, test, vocabulary)),
    }


def main() -> int:
    from velodrome.data import catalogue

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ptb", help="a text [ptb]")
    text = catalogue.load_text(parser.parse_args().dataset)
    for name, value in baselines(text.train, text.test, len(text.vocabulary)).items():
        print(f"{name}: test perplexity {value:.2f} over {len(text.test) - 1:,} words")
    return 0


if __name__ == "__main__":
    sys.exit(main())

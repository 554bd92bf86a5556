"""The baselines of language models are what their definitions say, and the recorded results are better than them."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from velodrome.data import catalogue

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "docs" / "results-gpt-mini.md"


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def _texts(vocabulary=12):
    """A text in which some words, and most pairs, are rare, and one to test on that has pairs never seen."""
    random = np.random.default_rng(5)
    chances = 1 / np.arange(1, vocabulary + 1) ** 1.5
    return [random.choice(vocabulary, count, p=chances / chances.sum()).astype(np.int32) for count in (200, 80)]


def test_a_unigram_is_as_likely_as_it_was_frequent():
    from ngrams import unigram_chances

    train, test = _texts()
    counts = Counter(train.tolist())
    expected = [(counts[word] + 1) / (len(train) + 12) for word in test[1:].tolist()]
    assert unigram_chances(train, test, 12) == pytest.approx(expected)


def _kneser_ney(train, before, word, vocabulary):
    """Interpolated Kneser-Ney with one discount, word by word from its definition."""
    pairs = Counter(pairwise(train))
    discount = (n1 := list(pairs.values()).count(1)) / (n1 + 2 * list(pairs.values()).count(2))
    preceded = Counter(second for _, second in pairs)
    lower = (preceded[word] + 1) / (len(pairs) + vocabulary)
    total = sum(count for (first, _), count in pairs.items() if first == before)
    if not total:
        return lower
    followers = len([pair for pair in pairs if pair[0] == before])
    return max(pairs[before, word] - discount, 0) / total + discount * followers / total * lower


def test_a_bigram_is_smoothed_by_kneser_and_ney():
    from ngrams import bigram_chances, perplexity

    train, test = _texts()
    words = train.tolist()
    expected = [_kneser_ney(words, *pair, 12) for pair in zip(test[:-1].tolist(), test[1:].tolist(), strict=True)]
    found = bigram_chances(train, test, 12)
    assert found == pytest.approx(expected)
    assert perplexity(found) == pytest.approx(math.exp(-np.mean(np.log(expected))))


def test_the_chances_of_what_may_follow_a_word_add_up_to_one():
    from ngrams import bigram_chances

    train, _ = _texts()
    for before in (0, 3, 11, 12):  # the last one was never seen
        pairs = [np.array([before, word]) for word in range(13)]
        assert sum(float(bigram_chances(train, pair, 13)[0]) for pair in pairs) == pytest.approx(1.0)


def test_the_recorded_language_model_is_better_than_both_baselines_of_its_text():
    from ngrams import baselines

    page = RECORDED.read_text()
    perplexity = float(re.search(r"\*\*Test perplexity ([\d.]+)\*\*", page)[1])
    stated = {name: float(re.search(rf"{name} (\d+\.\d+)", page)[1]) for name in ("unigram", "bigram")}
    assert perplexity < stated["bigram"] < stated["unigram"]
    if os.environ.get("VELODROME_DATA_MIRROR", "").startswith("http") or not catalogue.is_here("ptb"):
        pytest.skip("the Penn Treebank is not on this machine; `velodrome data prepare ptb` fetches it")
    text = catalogue.load_text("ptb")
    found = baselines(text.train, text.test, len(text.vocabulary))
    assert {name: round(value, 2) for name, value in found.items()} == stated

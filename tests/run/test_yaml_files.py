"""YAML that somebody else wrote: what it stands for may be far larger than its text."""

from __future__ import annotations

import pytest

from velodrome.run.yaml_files import parse_yaml

pytestmark = [pytest.mark.unit, pytest.mark.timeout(20)]


def laughs(item: str) -> str:
    """Ten levels, each of which names the one before nine times."""
    levels = "".join(f"a{level}: &a{level} {item % ','.join([f'*a{level - 1}'] * 9)}\n" for level in range(1, 10))
    return "a0: &a0 {x: 1}\n" + levels


@pytest.mark.parametrize(("text", "reason"), [
    ("[" * 300_000 + "]" * 300_000, "nested more than 50 levels"),
    ("a: &a [*a]", "contains itself"),
    (laughs("[%s]"), "aliases stand for more than 1,000,000 values"),
    (laughs("{<<: [%s]}"), "aliases stand for more than 1,000,000 values"),
    ("a: 2022-13-45", "month must be"),
    ("a: 1\n---\nb: 2", "single document"),
])
def test_what_cannot_be_a_job_is_refused_at_once(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_yaml(text)


def test_aliases_and_merges_of_a_sensible_size_are_read():
    assert parse_yaml("x: &a {q: 1}\ny: {<<: *a, z: 2}\nw: *a") == {"x": {"q": 1}, "y": {"q": 1, "z": 2}, "w": {"q": 1}}
    assert parse_yaml("") is None

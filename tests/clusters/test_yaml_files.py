"""YAML that somebody else wrote: what it stands for may be far larger than its text."""

from __future__ import annotations

import pytest
import yaml

from velodrome.clusters.yaml_files import parse_yaml

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


def test_on_is_the_name_of_a_field_and_only_true_and_false_are_booleans():
    assert parse_yaml("on: ssh:x\nvary: {on: [local, off]}") == {"on": "ssh:x", "vary": {"on": ["local", "off"]}}
    assert parse_yaml("[yes, No, ON, true, False, TRUE]") == ["yes", "No", "ON", True, False, True]


def test_numbers_to_the_base_of_60_stay_texts():
    assert parse_yaml("[30:00, 1:30:00, 190:20.5, -1:30]") == ["30:00", "1:30:00", "190:20.5", "-1:30"]
    assert parse_yaml("[12, -3, 0x1f, 0o7, 1_000, 2.5, 1.0e-05, .5, -.inf]") == [
        12, -3, 31, "0o7", 1000, 2.5, 1e-5, 0.5, float("-inf")]


@pytest.mark.parametrize("value", [
    "on", "yes", "No", "true", "30:00", "1:30.5", "1e-3",
    "0x1f", "010", "1_000", ".5", "null", "~", "", "=", "<<", "a: b",
    "2022-01-02", True, False, None, 12, -7, 0, 2.5, 1e-30, 1e300, float("inf"), ["on", True], {"on": {"off": "y"}},
])
@pytest.mark.parametrize("style", [None, False, True])
def test_what_is_written_is_read_back_equal(value, style):
    written = yaml.safe_dump({"on": value, "vary": [value]}, default_flow_style=style)
    found = parse_yaml(written)
    assert found == {"on": value, "vary": [value]}
    assert type(found["on"]) is type(value)


def test_a_field_that_is_given_twice_is_refused():
    with pytest.raises(ValueError, match="'workers' is defined twice, again in line 2"):
        parse_yaml("workers: 1\nworkers: 2")

"""Options that engines declare: where help and files have them, and that no two have one name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from velodrome.catalog import registry
from velodrome.catalog.engines.torch import ENGINE, SYNC_EVERY
from velodrome.catalog.options import Option, placed
from velodrome.errors import BadRequest
from velodrome.job.job import Job, job_fields, job_groups
from velodrome.job.resolve import resolve

pytestmark = pytest.mark.unit


@pytest.fixture
def empty_caches() -> Iterator[None]:
    registry.options.cache_clear()
    yield
    registry.options.cache_clear()


def test_options_stand_after_the_fields_that_they_name_and_others_at_the_end() -> None:
    first = Option[int | None]("first", int | None, None, "", after="b")
    second = Option[int | None]("second", int | None, None, "", after="first")
    last = Option[int | None]("last", int | None, None, "")
    lost = Option[int | None]("lost", int | None, None, "", after="nowhere")
    order = placed(["a", "b", "c"], [last, second, first, lost], lambda option: option.after)
    assert order == ["a", "b", "first", "second", "c", "last", "lost"]


def test_every_field_is_in_one_group_and_has_a_description() -> None:
    grouped = [name for names in job_groups().values() for name in names]
    assert sorted(grouped) == sorted(job_fields())
    assert all(field.description for field in job_fields().values())


def test_a_strategy_s_default_fills_an_option_that_is_not_set() -> None:
    assert SYNC_EVERY.of(Job()) is None
    assert SYNC_EVERY.of(resolve(Job(strategy="diloco", workers=2))) == 50
    assert SYNC_EVERY.of(resolve(Job(strategy="diloco", workers=2, sync_every=3))) == 3


@pytest.mark.usefixtures("empty_caches")
def test_two_engines_cannot_declare_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(ENGINE, name="other", options={Option[int | None]("sync_every", int | None, None, ""): None})
    monkeypatch.setattr(registry, "all_forms", lambda: [ENGINE, other])
    with pytest.raises(BadRequest, match="engine other has an option 'sync_every', and so has another engine"):
        registry.options()

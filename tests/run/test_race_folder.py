"""A race folder holds one race: its own, or the same one grown by jobs that can run now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from velodrome.errors import BadRequest
from velodrome.run.race import RaceFolder
from velodrome.spec.race import Race, expand, parse_race

pytestmark = pytest.mark.unit


def race(*entries: dict[str, Any], **more: Any) -> Race:
    return parse_race({"job": {"dataset": "digits", **more}, "vary": {"entry": list(entries)}})


ONE, TWO = {"strategy": "single"}, {"strategy": "ddp", "workers": 2}


def test_the_same_race_goes_on_and_another_is_refused(runs: Path) -> None:
    folder = RaceFolder(runs, "first")
    folder.begin(race(ONE))
    folder.begin(race(ONE))
    for other in (race(ONE, TWO), race(ONE, epochs=9)):
        with pytest.raises(BadRequest, match="holds another race"):
            folder.begin(other)


def test_a_race_may_grow_but_not_change(runs: Path) -> None:
    folder = RaceFolder(runs, "first")
    folder.begin(race(ONE))
    folder.begin(race(ONE, TWO), grown=True)
    folder.begin(race(ONE, TWO))
    for other in (race(ONE), race(ONE, TWO, epochs=9)):
        with pytest.raises(BadRequest, match="holds another race"):
            folder.begin(other, grown=True)


def test_a_race_of_several_data_sets_and_models_names_them() -> None:
    entries = expand(race(ONE, {**ONE, "dataset": "mnist"}, {**ONE, "dataset": "path:/my/photos", "model": "linear"}))
    assert [entry.name for entry in entries] == [
        "digits-dense-128-torch-single-1w-128b-1", "mnist-dense-128-torch-single-1w-128b-1",
        "path-my-photos-linear-torch-single-1w-128b-1",
    ]

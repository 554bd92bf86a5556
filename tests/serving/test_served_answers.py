"""What models say, against values computed by hand."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velodrome
from hostile_files import picture
from tiny_models import brightness, counting, line
from velodrome.errors import BadRequest
from velodrome.serving import inputs, responses
from velodrome.serving import model as serving_model
from velodrome.serving.model import BadInput, LoadedModel, Session, load_for_requests
from velodrome.serving.responses import Batcher, occlusion, responses_of

pytestmark = pytest.mark.unit


def loaded(folder: Path) -> LoadedModel:
    return LoadedModel(folder, folder.parent.name, threads=1)


def test_logits_become_probabilities_the_most_probable_first(tmp_path: Path) -> None:
    model = loaded(brightness(tmp_path))
    scores = model.scores(inputs.from_picture(model.about, picture(colour=204)))
    first, second = responses_of(model.about, scores)[0]
    light = 1 / (1 + math.exp(-2 * 10 * 0.3))
    assert (first["class"], second["class"]) == ("light", "dark")
    assert first["probability"] == pytest.approx(light, abs=1e-5)
    assert first["probability"] + second["probability"] == pytest.approx(1, abs=1e-5)
    assert len(responses_of(model.about, scores, 1)[0]) == 1


@pytest.mark.parametrize(
    ("task", "outputs", "scores", "wanted"),
    [
        ("binary", "logits", [[0.0]], {"no": 0.5, "yes": 0.5}),
        ("binary", "logits", [[math.log(3)]], {"no": 0.25, "yes": 0.75}),
        ("multi-label", "logits", [[math.log(3), 0.0]], {"no": 0.75, "yes": 0.5}),
        ("classification", "softmax", [[0.2, 0.8]], {"no": 0.2, "yes": 0.8}),
        ("classification", "sigmoid", [[0.3, 0.9]], {"no": 0.25, "yes": 0.75}),
        ("classification", "logits", [[1000.0, 1000.0]], {"no": 0.5, "yes": 0.5}),
    ],
)
def test_each_task_has_its_own_probabilities(
    tmp_path: Path, task: str, outputs: str, scores: list[list[float]], wanted: dict[str, float]
) -> None:
    about = loaded(brightness(tmp_path)).about.model_copy(
        update={"task": task, "outputs": outputs, "classes": ("no", "yes")}
    )
    found = {one["class"]: one["probability"] for one in responses_of(about, np.array(scores, np.float32))[0]}
    assert found == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("row", "price"), [({"width": 7}, 130.0), ({"width": "5", "colour": "red"}, 110.0), ({}, 110.0)]
)
def test_a_row_is_encoded_as_in_training_and_the_answer_has_its_units(
    tmp_path: Path, row: dict[str, Any], price: float
) -> None:
    model = loaded(line(tmp_path))
    (answer,) = responses_of(model.about, model.scores(inputs.from_fields(model.about, row)))
    assert answer == [{"name": "price", "value": pytest.approx(price, abs=1e-3)}]


@pytest.mark.parametrize(
    "row", [[], 3, {"height": 1}, {"width": "wide"}, {"width": [1]}, {"width": float("inf")}, {"width": 1e300}]
)
def test_a_row_that_cannot_be_used_is_refused(tmp_path: Path, row: Any) -> None:
    with pytest.raises(BadInput):
        inputs.from_fields(loaded(line(tmp_path)).about, row)


def test_a_language_model_continues_a_text(tmp_path: Path) -> None:
    model = loaded(counting(tmp_path))
    assert int(responses.next_words(model, "One two").argmax()) == 3
    assert list(responses.generate(model, "one", words=5, temperature=0)) == ["two", "three", "<eos>", "one", "two"]
    assert list(responses.generate(model, "one", words=5, seed=3)) == ["two", "three", "<eos>", "one", "two"]
    assert responses.unknown_words(model, "one four ONE four") == ["four"]
    for wrong in ({"words": 0}, {"words": 10**6}, {"temperature": -1.0}, {"temperature": float("nan")}):
        with pytest.raises(BadInput):
            list(responses.generate(model, "one", **wrong))
    with pytest.raises(BadInput, match="characters"):
        responses.next_words(model, "one " * 10_000)


def test_the_map_is_highest_where_the_picture_speaks_for_the_answer(tmp_path: Path) -> None:
    model = loaded(brightness(tmp_path))
    image = np.zeros((1, 8, 8, 1), np.uint8)
    image[:, 1:7, 1:7] = 240
    image[:, 2:4, 5:7] = 255
    found = occlusion(model, image)
    grid = np.array(found.grid)
    assert found.predicted == "light"
    assert grid.shape == (8, 8)
    assert grid[3, 4] > 2 * abs(grid[0, 0])


def test_requests_that_arrive_together_are_computed_together_and_get_their_own_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(brightness(tmp_path))
    sizes: list[int] = []
    compute = model.scores
    monkeypatch.setattr(model, "scores", lambda fed: sizes.append(len(fed["x"])) or compute(fed))

    async def ask() -> list[Any]:
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(model, pool)
            return await asyncio.gather(*(
                batcher.numbers({"x": np.full((1, 8, 8, 1), grey, np.uint8)}) for grey in range(150)
            ))

    found = asyncio.run(ask())
    # The graph returns this for "light" and minus this for "dark".
    lights = [10 * (grey / 255 - 0.5) for grey in range(150)]
    assert [one[1] for one in found] == pytest.approx([1 / (1 + math.exp(-2 * light)) for light in lights], abs=1e-5)
    assert sum(sizes) == 150
    assert len(sizes) <= 150 / responses.MOST_TOGETHER + 2


def test_as_many_batches_are_computed_at_a_time_as_there_are_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(brightness(tmp_path))
    both, compute = threading.Barrier(2, timeout=60), model.scores

    def meet(fed: Any) -> Any:
        both.wait()  # breaks if the other one never comes
        return compute(fed)

    monkeypatch.setattr(model, "scores", meet)

    async def ask() -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            batcher = Batcher(model, pool, at_once=2)
            one = {"x": np.zeros((1, 8, 8, 1), np.uint8)}
            return await asyncio.gather(*(batcher.numbers(one) for _ in range(2 * responses.MOST_TOGETHER)))

    assert len(asyncio.run(ask())) == 2 * responses.MOST_TOGETHER


@pytest.mark.parametrize(
    ("seconds", "cores", "calls", "threads"), [(0.001, 4, 5, 1), (0.5, 4, 1, 4), (0.5, 1, 2, 1)]
)
def test_a_long_answer_is_divided_among_the_cores_and_short_ones_are_computed_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, cores: int, calls: int, threads: int
) -> None:
    folder = brightness(tmp_path)
    assert loaded(folder).seconds_of_one() > 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(LoadedModel, "seconds_of_one", lambda self: seconds)
    made: list[int | None] = []
    monkeypatch.setattr(serving_model, "Session", lambda file, threads: made.append(threads) or opened(file, threads))
    opened = Session
    model, at_once = load_for_requests(folder, "brightness")
    assert at_once == calls
    assert made[-1] == threads
    assert model.scores({"x": np.full((1, 8, 8, 1), 255, np.uint8)})[0, 1] == pytest.approx(5, abs=1e-4)


def test_an_answer_that_is_not_finite_is_refused_and_its_neighbours_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(brightness(tmp_path))
    nan = np.float32("nan")
    monkeypatch.setattr(model, "scores", lambda fed: np.where(fed["x"][:, 0, 0] > 0, nan, np.ones((1, 2))))

    async def ask() -> list[Any]:
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(model, pool)
            return await asyncio.gather(*(
                batcher.numbers({"x": np.full((1, 8, 8, 1), grey, np.uint8)}) for grey in (0, 9, 0)
            ), return_exceptions=True)

    first, second, third = asyncio.run(ask())
    assert first == third == [0.5, 0.5]
    assert isinstance(second, BadInput)
    assert "finite" in str(second)


def test_more_requests_than_can_wait_are_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MOST_WAITING", 10)
    model = loaded(brightness(tmp_path))

    async def ask() -> list[Any]:
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(model, pool)
            one = {"x": np.zeros((1, 8, 8, 1), np.uint8)}
            return await asyncio.gather(*(batcher.numbers(one) for _ in range(30)), return_exceptions=True)

    refused = [one for one in asyncio.run(ask()) if isinstance(one, BadInput)]
    assert len(refused) == 20
    assert refused[0].status == 503


def test_predict_answers_files_of_each_kind(tmp_path: Path) -> None:
    brightness(tmp_path)
    line(tmp_path)
    counting(tmp_path)
    (tmp_path / "grey.png").write_bytes(picture(colour=0))
    (tmp_path / "rows.csv").write_text("colour,width,more\nred,5,1\nblue,7,2\n")
    (tmp_path / "rows.json").write_text('{"width": 7}')
    (tmp_path / "words.txt").write_text("one two")
    found = velodrome.predict("brightness", [tmp_path / "grey.png"], tmp_path, top=1)["files"]
    assert [one["class"] for one in found[0]["predictions"]] == ["dark"]
    rows = velodrome.predict("line", [tmp_path / "rows.csv", tmp_path / "rows.json"], tmp_path)["files"]
    assert [round(row["predictions"][0]["value"]) for row in rows] == [110, 130, 130]
    assert [row.get("row") for row in rows] == [1, 2, None]
    words = velodrome.predict("counting", [tmp_path / "words.txt"], tmp_path)["files"]
    assert words[0]["predictions"][0]["class"] == "three"
    for name, file in (("brightness", "rows.csv"), ("line", "grey.png"), ("line", "gone.csv")):
        with pytest.raises(BadRequest):
            velodrome.predict(name, [tmp_path / file], tmp_path)


def test_the_only_batch_of_a_graph_is_filled_up(tmp_path: Path) -> None:
    model = loaded(brightness(tmp_path))
    model.about = model.about.model_copy(update={"only_batch": 4})
    greys = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 1), np.uint8) * 40
    assert model.scores({"x": greys})[:, 1] == pytest.approx([10 * (40 * n / 255 - 0.5) for n in range(6)], abs=1e-4)

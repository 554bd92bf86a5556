"""What programs ask a server of models: maps, generated text, test examples. `openapi.py` describes it.

Predictions have a file of their own, `predicting.py`.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from velodrome.serving import responses
from velodrome.serving.inputs import FORM_BYTES, LARGEST_BYTES
from velodrome.serving.model import BadInput
from velodrome.serving.responses import occlusion
from velodrome.web.json_answer import JsonAnswer
from velodrome.web.model_facts import facts_of
from velodrome.web.openapi import description
from velodrome.web.predicting import (
    ANSWER_SECONDS,
    CUT_OFF,
    PREDICT,
    TOO_LATE,
    Predict,
    json_of,
    number,
    picture_of,
    since,
    text_of,
)
from velodrome.web.served_models import ServedModels

EXPLAIN, GENERATE = "/api/explain", "/api/generate"
OPEN_POSTS = (PREDICT, EXPLAIN, GENERATE)
UPLOADS = tuple((path, LARGEST_BYTES + FORM_BYTES) for path in (PREDICT, EXPLAIN))
Endpoint = Callable[[Request], Awaitable[Response]]


def _models(request: Request) -> ServedModels:
    models: ServedModels = request.app.state.models
    return models


def answering(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose refusals are sentences with their own status, and that has an end."""

    async def answered(request: Request) -> Response:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await endpoint(request)
        except BadInput as error:
            return JsonAnswer({"error": str(error)}, error.status)
        except TimeoutError:
            return JsonAnswer({"error": TOO_LATE}, 408)
        except ClientDisconnect:
            return JsonAnswer({"error": CUT_OFF}, 413)

    return answered


async def explain(request: Request) -> Response:
    """Where a picture speaks for the answer: a grid of how much less probable it is with a part covered."""
    body = await request.body()
    slot = await _models(request).get(request.query_params.get("model"))
    began = time.perf_counter()
    assert slot.model is not None
    example = await picture_of(_models(request), slot, request.headers.get("content-type", ""), body)
    image = next(iter(example.values()))
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_models(request).patient, occlusion, slot.model, image)
    return JsonAnswer({
        "model": slot.name, "class": found.answer, "probability": found.probability, "map": found.grid,
        "milliseconds": since(began),
    })


async def generate(request: Request) -> Response:
    """Continue a text."""
    given = json_of(await request.body())
    text = text_of(given)
    options: dict[str, Any] = {}
    for name, kind in (("words", int), ("seed", int), ("temperature", float)):
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float if kind is float else int) \
                or not -(2**53) <= value <= 2**53 or (name == "seed" and value < 0):
            raise BadInput(f"{name!r} takes a number" if kind is float else f"{name!r} takes a whole number from 0 on")
        options[name] = kind(value)
    named = given.get("model")
    if named is not None and not isinstance(named, str):
        raise BadInput("'model' is the name of a model")
    slot = await _models(request).get(named)
    model = slot.model
    assert model is not None
    if model.about.kind != "text":
        raise BadInput(f"model {slot.name!r} does not read text")
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    words = await loop.run_in_executor(
        _models(request).patient, lambda: list(responses.generate(model, text, **options))
    )
    return JsonAnswer({"model": slot.name, "words": words, "milliseconds": since(began)})


async def models(request: Request) -> Response:
    """Every model of this server."""
    return JsonAnswer({"models": [facts_of(slot) for slot in _models(request).slots.values()]})


async def example(request: Request) -> Response:
    """One picture of the test set, as PNG."""
    slot = await _models(request).get(request.query_params.get("model"))
    assert slot.model is not None
    index = number(request.query_params, "index", 0, 10**6, 0)
    one = slot.model.about.inputs[0]
    stored = slot.model.examples.get(f"in:{one.name}")
    if stored is None or slot.model.image_input is None or one.dtype != "uint8" or index >= len(stored) \
            or one.shape[-1] not in (1, 3):
        raise BadInput(f"no test picture {index}", 404)
    from PIL import Image

    pixels = np.clip(stored[index].astype(np.float32) * (255 / slot.model.about.brightest), 0, 255)
    picture = Image.fromarray(np.rint(pixels).astype(np.uint8).squeeze(-1) if one.shape[-1] == 1
                              else np.rint(pixels).astype(np.uint8))
    content = io.BytesIO()
    picture.save(content, "PNG")
    return Response(content.getvalue(), media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})


async def openapi(request: Request) -> Response:
    return JsonAnswer(description(list(_models(request).slots)))


ROUTES = (
    Route(PREDICT, Predict(), methods=["POST"]),
    Route(EXPLAIN, answering(explain), methods=["POST"]),
    Route(GENERATE, answering(generate), methods=["POST"]),
    Route("/api/models", answering(models)),
    Route("/api/example", answering(example)),
    Route("/openapi.json", openapi),
)

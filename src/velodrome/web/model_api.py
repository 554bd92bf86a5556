"""What programs ask a server of models: predictions, maps, generated text, test examples. `openapi.py` describes it."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from velodrome.serving import inputs, language
from velodrome.serving.answers import TOP, answers_of
from velodrome.serving.explain import occlusion
from velodrome.serving.model import Array, BadInput
from velodrome.serving.pictures import LARGEST_BYTES, SMALL_BYTES
from velodrome.serving.uploads import FORM_BYTES, file_of
from velodrome.web.model_facts import facts_of
from velodrome.web.openapi import description
from velodrome.web.served_models import ServedModels, Slot

#: Seconds to send a request and to answer it, together.
ANSWER_SECONDS = 80.0
MOST_CLASSES = 1_000
PREDICT, EXPLAIN, GENERATE = "/api/predict", "/api/explain", "/api/generate"
OPEN_POSTS = (PREDICT, EXPLAIN, GENERATE)
UPLOADS = tuple((path, LARGEST_BYTES + FORM_BYTES) for path in (PREDICT, EXPLAIN))
_LONGEST_TEXT_BODY = 1 << 20
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode
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
            return JSONResponse({"error": str(error)}, error.status)
        except TimeoutError:
            return JSONResponse({"error": "the request took too long to send or to answer"}, 408)
        except ClientDisconnect:
            return JSONResponse({"error": "the request is larger than this server takes, or was cut off"}, 413)

    return answered


def _number(request: Request, name: str, default: int, most: int, least: int = 1) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise BadInput(f"{name}={text!r}: choose a whole number from {least} to {most}")
    return int(text)


async def predict(request: Request) -> Response:
    """Answer one example: a picture, or JSON with the fields of a row, or a text."""
    top = _number(request, "top", TOP, MOST_CLASSES)
    body = await request.body()
    slot = await _models(request).get(request.query_params.get("model"))
    began = time.perf_counter()
    assert slot.model is not None
    about = slot.model.about
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
        given = _json(body)
        if about.kind == "text":
            return await _next_words(_models(request), slot, _text(given), top, began)
        example = inputs.from_fields(about, given)
    else:
        if about.kind == "text":
            raise BadInput('this model reads text: send JSON, {"text": "the words so far"}', 415)
        example = await _picture(request, slot, body)
    assert slot.batcher is not None
    scores = await slot.batcher.scores(example)
    if not np.isfinite(scores).all():
        raise BadInput("the model's answer to this is not a finite number")
    return _answer(slot, answers_of(about, scores, top)[0], began)


async def _picture(request: Request, slot: Slot, body: bytes) -> dict[str, Array]:
    """The picture of a request, as the graph takes it. Large ones are decoded by a thread."""
    assert slot.model is not None
    content = file_of(request.headers.get("content-type", ""), body)
    if len(content) <= SMALL_BYTES:
        return inputs.from_picture(slot.model.about, content)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_models(request).decoding, inputs.from_picture, slot.model.about, content)


def _answer(slot: Slot, predictions: list[dict[str, Any]], began: float, **more: Any) -> Response:
    milliseconds = round(1000 * (time.perf_counter() - began), 2)
    content = {"model": slot.name, "predictions": predictions, **more, "milliseconds": milliseconds}
    return Response(_encode(content), media_type="application/json")


def _json(body: bytes) -> Any:
    if len(body) > _LONGEST_TEXT_BODY:
        raise BadInput(f"the JSON has {len(body):,} bytes, and at most {_LONGEST_TEXT_BODY:,} are read", 413)
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("the body is no JSON", 400) from None


def _text(given: Any) -> str:
    text = given.get("text") if isinstance(given, dict) else None
    if not isinstance(text, str):
        raise BadInput('send {"text": "the words so far"}')
    return text


async def _next_words(models: ServedModels, slot: Slot, text: str, top: int, began: float) -> Response:
    model = slot.model
    assert model is not None
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(models.computing, language.next_words, model, text)
    about = model.about.model_copy(update={"outputs": "probabilities"})
    return _answer(slot, answers_of(about, found[None], top)[0], began, unknown=language.unknown_words(model, text))


async def explain(request: Request) -> Response:
    """Where a picture speaks for the answer: a grid of how much less probable it is with a part covered."""
    body = await request.body()
    slot = await _models(request).get(request.query_params.get("model"))
    began = time.perf_counter()
    assert slot.model is not None
    example = await _picture(request, slot, body)
    image = next(iter(example.values()))
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_models(request).patient, occlusion, slot.model, image)
    return JSONResponse({
        "model": slot.name, "class": found.answer, "probability": found.probability, "map": found.grid,
        "milliseconds": round(1000 * (time.perf_counter() - began), 2),
    })


async def generate(request: Request) -> Response:
    """Continue a text."""
    given = _json(await request.body())
    text = _text(given)
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
        _models(request).patient, lambda: list(language.generate(model, text, **options))
    )
    return JSONResponse({"model": slot.name, "words": words, "milliseconds": _since(began)})


def _since(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 2)


async def models(request: Request) -> Response:
    """Every model of this server."""
    return JSONResponse({"models": [facts_of(slot) for slot in _models(request).slots.values()]})


async def example(request: Request) -> Response:
    """One picture of the test set, as PNG."""
    slot = await _models(request).get(request.query_params.get("model"))
    assert slot.model is not None
    number = _number(request, "index", 0, 10**6, 0)
    one = slot.model.about.inputs[0]
    stored = slot.model.examples.get(f"in:{one.name}")
    if stored is None or not one.image or one.dtype != "uint8" or number >= len(stored):
        raise BadInput(f"no test picture {number}", 404)
    from PIL import Image

    pixels = np.clip(stored[number].astype(np.float32) * (255 / slot.model.about.brightest), 0, 255)
    picture = Image.fromarray(np.rint(pixels).astype(np.uint8).squeeze(-1) if one.shape[-1] == 1
                              else np.rint(pixels).astype(np.uint8))
    content = io.BytesIO()
    picture.save(content, "PNG")
    return Response(content.getvalue(), media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})


async def openapi(request: Request) -> Response:
    return JSONResponse(description(list(_models(request).slots)))


ROUTES = (
    Route(PREDICT, answering(predict), methods=["POST"]),
    Route(EXPLAIN, answering(explain), methods=["POST"]),
    Route(GENERATE, answering(generate), methods=["POST"]),
    Route("/api/models", answering(models)),
    Route("/api/example", answering(example)),
    Route("/openapi.json", openapi),
)

"""`POST /api/predict`, the one request that many clients send at a time: read, decoded, batched, answered.

It speaks ASGI itself, behind the guard and before the router: the objects of a framework would take longer than the
forward pass of a small network.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from velodrome.serving import inputs, responses
from velodrome.serving.inputs import SMALL_BYTES, file_of
from velodrome.serving.model import Array, BadInput
from velodrome.serving.responses import TOP, response_of, responses_of
from velodrome.web.served_models import ServedModels, Slot

PREDICT = "/api/predict"
#: Seconds to send a request and to answer it, together.
ANSWER_SECONDS = 80.0
MOST_CLASSES = 1_000
_LONGEST_TEXT_BODY = 1 << 20
_KIND = (b"content-type", b"application/json")
#: Escapes what is not ASCII: half a surrogate, which a text may hold, cannot be sent in any other way.
_encode = json.JSONEncoder(allow_nan=False, check_circular=False).encode
TOO_LATE = "the request took too long to send or to answer"
CUT_OFF = "the request is larger than this server takes, or was cut off"


class Predict:
    """Answers one example: a picture, or JSON with the fields of a row, or a text."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 200
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await _answer_to(scope, receive)
        except BadInput as error:
            status, found = error.status, {"error": str(error)}
        except TimeoutError:
            status, found = 408, {"error": TOO_LATE}
        content = _encode(found).encode()
        length = (b"content-length", b"%d" % len(content))
        await send({"type": "http.response.start", "status": status, "headers": [_KIND, length]})
        await send({"type": "http.response.body", "body": content})


async def _answer_to(scope: Scope, receive: Receive) -> dict[str, Any]:
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)) \
        if scope["query_string"] else {}
    top = number(query, "top", TOP, MOST_CLASSES)
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"").decode("latin-1")
    body = await _body(receive)
    models: ServedModels = scope["app"].state.models
    slot = await models.get(query.get("model"))
    began = time.perf_counter()
    assert slot.model is not None
    assert slot.batcher is not None
    about = slot.model.about
    if kind.partition(";")[0].strip().lower() == "application/json":
        given = json_of(body)
        if about.kind == "text":
            return await _next_words(models, slot, text_of(given), top, began)
        example = inputs.from_fields(about, given)
    else:
        if about.kind == "text":
            raise BadInput('this model reads text: send JSON, {"text": "the words so far"}', 415)
        example = await picture_of(models, slot, kind, body)
    row = await slot.batcher.numbers(example)
    return _answer(slot, response_of(about, row, top), began)


async def _body(receive: Receive) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        whole: bytes = message["body"]
        return whole
    parts = []
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise BadInput(CUT_OFF, 413)


async def picture_of(models: ServedModels, slot: Slot, kind: str, body: bytes) -> dict[str, Array]:
    """The picture of a request, as the graph takes it. Large ones are decoded by a thread."""
    assert slot.model is not None
    content = file_of(kind, body)
    if len(content) <= SMALL_BYTES:
        return inputs.from_picture(slot.model.about, content)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(models.decoding, inputs.from_picture, slot.model.about, content)


async def _next_words(models: ServedModels, slot: Slot, text: str, top: int, began: float) -> dict[str, Any]:
    model = slot.model
    assert model is not None
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(models.computing, responses.next_words, model, text)
    about = model.about.model_copy(update={"outputs": "probabilities"})
    return _answer(slot, responses_of(about, found[None], top)[0], began, unknown=responses.unknown_words(model, text))


def _answer(slot: Slot, predictions: list[dict[str, Any]], began: float, **more: Any) -> dict[str, Any]:
    return {"model": slot.name, "predictions": predictions, **more, "milliseconds": since(began)}


def since(began: float) -> float:
    """Milliseconds."""
    return round(1000 * (time.perf_counter() - began), 2)


def number(query: Mapping[str, str], name: str, default: int, most: int, least: int = 1) -> int:
    """A whole number of the address."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise BadInput(f"{name}={text!r}: choose a whole number from {least} to {most}")
    return int(text)


def json_of(body: bytes) -> Any:
    if len(body) > _LONGEST_TEXT_BODY:
        raise BadInput(f"the JSON has {len(body):,} bytes, and at most {_LONGEST_TEXT_BODY:,} are read", 413)
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("the body is no JSON", 400) from None


def text_of(given: Any) -> str:
    text = given.get("text") if isinstance(given, dict) else None
    if not isinstance(text, str):
        raise BadInput('send {"text": "the words so far"}')
    return text

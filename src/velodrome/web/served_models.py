"""The models of a server, loaded where they were exported, exported by a process of their own where they were not; and
what they predict."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

import numpy as np
from starlette.types import Receive, Scope, Send

from velodrome.api.runs import locate_run
from velodrome.errors import VelodromeError
from velodrome.run.store import RunFolder
from velodrome.serving import inputs, responses
from velodrome.serving.inputs import SMALL_BYTES, file_of
from velodrome.serving.model import Array, BadInput, LoadedModel, is_exported, load_for_requests
from velodrome.serving.responses import TOP, Batcher, response_of, responses_of

#: Classes that are listed: a page shows no more, and a vocabulary would be large.
_MOST_CLASSES = 200
#: Pictures of at most this height and width can be drawn.
_DRAWN_PIXELS = 64


def facts_of(slot: Slot) -> dict[str, Any]:
    """A model as plain data: its status, task and inputs."""
    if slot.model is None:
        return {"name": slot.name, "status": slot.status, "problem": slot.problem}
    about = slot.model.about
    return {
        "name": slot.name, "status": slot.status, "problem": slot.problem, "task": about.task, "kind": about.kind,
        "model": about.model, "engine": about.engine, "dataset": about.dataset,
        "classes": list(about.classes[:_MOST_CLASSES]), "words": len(about.vocabulary), "test": slot.test,
        "difference": about.difference, "checked": about.checked,
        "inputs": [model_input.model_dump() for model_input in about.inputs],
        "columns": about.columns.get("features", []), "picture": _picture(slot.model),
    }


@lru_cache(maxsize=64)
def _picture(model: LoadedModel) -> dict[str, Any] | None:
    """Size of the pictures that a model takes, how a drawing must look to resemble its data, and its test pictures."""
    shape = model.image_input
    if shape is None:
        return None
    height, width, channels = shape
    model_input = model.about.inputs[0]
    images, labels = model.examples.get(f"in:{model_input.name}"), _labels(model)
    facts: dict[str, Any] = {"height": height, "width": width, "channels": channels, "drawn": None, "examples": []}
    if images is None or model_input.dtype != "uint8":
        return facts
    facts["examples"] = labels if labels else [""] * len(images)
    if channels == 1 and max(height, width) <= _DRAWN_PIXELS:
        light = images[..., 0].astype(np.float32) / model.about.brightest
        edge = np.concatenate([light[:, 0], light[:, -1], light[:, :, 0], light[:, :, -1]], axis=1)
        dark = float(np.median(edge)) < 0.5
        facts["drawn"] = {"dark": dark, "fill": _fill(light if dark else 1 - light)}
    return facts


def _fill(light: np.ndarray[Any, Any]) -> float:
    """How much of the picture's side the box around what is drawn takes, in the middle of the examples."""
    sides = []
    for image in light:
        rows, columns = np.flatnonzero(image.max(1) > 0.2), np.flatnonzero(image.max(0) > 0.2)
        if len(rows) and len(columns):
            sides.append(max((rows[-1] - rows[0] + 1) / image.shape[0],
                             (columns[-1] - columns[0] + 1) / image.shape[1]))
    return round(float(np.median(sides)), 3) if sides else 0.8


def _labels(model: LoadedModel) -> list[str]:
    """What the test pictures show, by name."""
    target = next((array for name, array in model.examples.items() if name.startswith("y:")), None)
    if target is None or target.ndim != 1 or target.dtype.kind not in "iu":
        return []
    names = model.about.classes
    return [names[place] if 0 <= place < len(names) else str(place) for place in target.tolist()]


#: Seconds that an export may take, and that a request waits for a model that is being prepared.
EXPORT_SECONDS = 600.0
WAIT_SECONDS = 60.0
#: Seconds that the server waits for exports before it opens its page, which shows what is still being prepared.
OPENING_SECONDS = 18.0


@dataclass
class Slot:
    """A place for one model."""

    name: str
    path: Path
    status: Literal["preparing", "ready", "failed"] = "preparing"
    problem: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    model: LoadedModel | None = None
    batcher: Batcher | None = None
    #: The accuracy or other metric that the run reported.
    test: dict[str, Any] = field(default_factory=dict)


class ServedModels:
    """Every model of a server by the name that it was asked for."""

    def __init__(self, names: Iterable[str], runs: Path, *, mirror: str | None = None, processes: int = 1) -> None:
        """`processes` is how many servers have these models, each its own copy."""
        self._processes = processes
        cores = len(os.sched_getaffinity(0))
        self.slots = {name: Slot(name, locate_run(runs, name)) for name in dict.fromkeys(names)}
        self._runs, self._mirror = runs, mirror
        #: Decoding and forward passes; both leave Python's lock most of the time.
        self.computing = ThreadPoolExecutor(max(cores + 1, len(self.slots)), "model")
        self.decoding = ThreadPoolExecutor(cores, "decode")
        #: Work that takes longer than a request should wait behind: maps and generated text.
        self.patient = ThreadPoolExecutor(1, "patient")
        self._exports: list[asyncio.subprocess.Process] = []
        self._preparing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Load what is exported; prepare the rest, one after another, in the background."""
        for slot in self.slots.values():
            if is_exported(slot.path / "model"):
                self._load(slot)
        self._preparing = asyncio.create_task(self._prepare_rest())

    async def settle(self) -> None:
        """Wait a while for models that are being exported."""
        waiting = [asyncio.ensure_future(slot.ready.wait()) for slot in self.slots.values() if slot.model is None]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=OPENING_SECONDS)
            for wait in late:
                wait.cancel()

    async def end(self) -> None:
        """Leave nothing running."""
        if self._preparing is not None:
            self._preparing.cancel()
            with suppress(asyncio.CancelledError):
                await self._preparing
        for pool in (self.computing, self.decoding, self.patient):
            pool.shutdown(wait=False, cancel_futures=True)

    def _load(self, slot: Slot) -> None:
        try:
            slot.model, at_once = load_for_requests(slot.path / "model", slot.name, self._processes)
            slot.batcher = Batcher(slot.model, self.computing, at_once=at_once)
            slot.status = "ready"
            slot.test = _test_of(slot.path)
        except VelodromeError as error:
            slot.status, slot.problem = "failed", str(error)
        slot.ready.set()

    async def _prepare_rest(self) -> None:
        for slot in self.slots.values():
            if slot.status == "preparing":
                slot.problem = await self._export(slot)
                if slot.problem:
                    slot.status = "failed"
                    slot.ready.set()
                else:
                    self._load(slot)

    async def _export(self, slot: Slot) -> str:
        """Run `velodrome export`; the sentence of what went wrong, or nothing."""
        words = [sys.executable, "-P", "-m", "velodrome", "export", str(slot.path), "--runs", str(self._runs), "--json"]
        if self._mirror:
            words += ["--mirror", self._mirror]
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await asyncio.wait_for(process.communicate(), EXPORT_SECONDS)
        except TimeoutError:
            return f"exporting the model took longer than {EXPORT_SECONDS:g} s"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.terminate()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(process.wait(), 10)
        if process.returncode == 0:
            return ""
        lines = said.decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("velodrome: ") if lines else f"the export ended with {process.returncode}"

    async def get(self, name: str | None) -> Slot:
        """A model that is ready; the first one if no name is given."""
        slot = next(iter(self.slots.values())) if name is None else self.slots.get(name)
        if slot is None:
            raise BadInput(f"no model {name!r} here: choose one of {', '.join(map(repr, self.slots))}", 404)
        if slot.status == "preparing":
            with suppress(TimeoutError):
                await asyncio.wait_for(slot.ready.wait(), WAIT_SECONDS)
        if slot.status == "preparing":
            raise BadInput(f"the model of {slot.name!r} is being exported: try again in a moment", 503)
        if slot.status == "failed":
            raise BadInput(slot.problem, 409)
        return slot


def _test_of(path: Path) -> dict[str, Any]:
    """The metrics of the run's result that are plain numbers."""
    result = RunFolder(path).result()
    test = result.test.as_json() if result is not None and result.test is not None else {}
    return {name: value for name, value in test.items() if isinstance(value, int | float)}


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
                answer = await _answer_to(scope, receive)
        except BadInput as error:
            status, answer = error.status, {"error": str(error)}
        except TimeoutError:
            status, answer = 408, {"error": TOO_LATE}
        content = _encode(answer).encode()
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
    probabilities = await loop.run_in_executor(models.computing, responses.next_words, model, text)
    about = model.about.model_copy(update={"outputs": "probabilities"})
    return _answer(slot, responses_of(about, probabilities[None], top)[0], began,
                   unknown=responses.unknown_words(model, text))


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
        raise BadInput(f"the JSON has {len(body):,} bytes, but at most {_LONGEST_TEXT_BODY:,} are read", 413)
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("the body is no JSON", 400) from None


def text_of(given: Any) -> str:
    text = given.get("text") if isinstance(given, dict) else None
    if not isinstance(text, str):
        raise BadInput('send {"text": "the words so far"}')
    return text

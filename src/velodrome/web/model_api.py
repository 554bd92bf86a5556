"""`velodrome serve`: what programs ask it, such as maps, generated text and test examples, the description of that, and
the start of the server. Predictions are in `served_models.py`."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from velodrome.api.runs import locate_run
from velodrome.run.saved_model import finished_result, job_of_saved_model
from velodrome.run.store import RunFolder
from velodrome.serving import responses
from velodrome.serving.inputs import FORM_BYTES, LARGEST_BYTES
from velodrome.serving.model import BadInput, is_exported
from velodrome.serving.responses import occlusion
from velodrome.web.app import JsonAnswer, make_app, page
from velodrome.web.processes import Siblings
from velodrome.web.security import Security
from velodrome.web.served_models import (
    ANSWER_SECONDS,
    CUT_OFF,
    PREDICT,
    TOO_LATE,
    Predict,
    ServedModels,
    facts_of,
    json_of,
    number,
    picture_of,
    since,
    text_of,
)


def description(names: Sequence[str]) -> dict[str, Any]:
    """The whole interface; `names` are those of the models."""
    import yaml

    about: dict[str, Any] = yaml.safe_load((files("velodrome.web") / "openapi.yaml").read_bytes())
    about["info"]["version"] = version("velodrome")
    about["components"]["schemas"]["model"]["enum"] = list(names)
    return about


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
    """Which parts of a picture support the prediction: a grid of how much less probable it is with a part covered."""
    body = await request.body()
    slot = await _models(request).get(request.query_params.get("model"))
    began = time.perf_counter()
    assert slot.model is not None
    example = await picture_of(_models(request), slot, request.headers.get("content-type", ""), body)
    image = next(iter(example.values()))
    loop = asyncio.get_running_loop()
    explanation = await loop.run_in_executor(_models(request).patient, occlusion, slot.model, image)
    return JsonAnswer({
        "model": slot.name, "class": explanation.predicted, "probability": explanation.probability,
        "map": explanation.grid, "milliseconds": since(began),
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
    model_input = slot.model.about.inputs[0]
    stored = slot.model.examples.get(f"in:{model_input.name}")
    if stored is None or slot.model.image_input is None or model_input.dtype != "uint8" or index >= len(stored) \
            or model_input.shape[-1] not in (1, 3):
        raise BadInput(f"no test picture {index}", 404)
    from PIL import Image

    pixels = np.clip(stored[index].astype(np.float32) * (255 / slot.model.about.brightest), 0, 255)
    picture = Image.fromarray(np.rint(pixels).astype(np.uint8).squeeze(-1) if model_input.shape[-1] == 1
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


def check_runs(names: Sequence[str], runs: Path, trusted: Collection[str] = ()) -> list[str]:
    """Refuse what has no model, before anything is served; those that must be exported first."""
    unready = []
    for name in names:
        path = locate_run(runs, name)
        if not is_exported(path / "model"):
            finished_result(RunFolder(path), "serve")
            job_of_saved_model(RunFolder(path), trusted)
            unready.append(name)
    return unready


def serve_app(
    names: Sequence[str], runs: Path, host: str = "127.0.0.1", *, mirror: str | None = None,
    security: Security | None = None, processes: int = 1, is_first: bool = True,
) -> Starlette:
    """The page and the interface of these runs' models, answered by so many processes where that is faster.

    The first of them starts the others.
    """
    models = ServedModels(names, runs, mirror=mirror, processes=processes)
    siblings = Siblings(names, runs, models, processes if is_first else 1)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        models.begin()
        try:
            await models.settle()
            yield
        finally:
            await models.end()

    routes = [Route("/", show), *ROUTES]
    direct = {PREDICT: Predict()}
    state = {"models": models, "siblings": siblings}
    return make_app(routes, security or security_of(host), lifespan=lifespan, state=state, direct=direct)


def security_of(host: str, **given: Any) -> Security:
    """What a server of models on this address accepts; `given` replaces what would be made up."""
    made = Security.for_address(host, open_posts=OPEN_POSTS, uploads=UPLOADS)
    return replace(made, **given)


async def show(request: Request) -> Response:
    """The page, with the inputs of models that are ready: the script fills them, and nothing has to move."""
    models: ServedModels = request.app.state.models
    slots = models.slots.values()
    ready = [facts_of(slot) for slot in slots if slot.model is not None]
    pictures = [facts["picture"] for facts in ready if facts["picture"]]
    return page(
        request, "model.html", names=list(models.slots),
        needs_token=request.app.state.security.token is not None, about=" · ".join(map(_summary, ready)),
        problems=[f"{slot.name}: {slot.problem}" for slot in slots if slot.status == "failed"],
        pictures=bool(pictures), drawn=any(details["drawn"] for details in pictures),
        tests=any(details["examples"] for details in pictures), texts=any(facts["kind"] == "text" for facts in ready),
    )


def _summary(facts: dict[str, Any]) -> str:
    """As `describe` in `model.js` writes it."""
    right = facts["test"].get("accuracy")
    metric = f", {100 * right:.1f} % of the test set right" if right is not None else ""
    return f"{facts['model']} ({facts['engine']}) trained on {facts['dataset']}{metric}"

"""The application of `velodrome serve`: the page of the models, and what programs ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from velodrome.api.runs import locate_run
from velodrome.run.saved_model import finished_result, job_of_saved_model
from velodrome.run.store import RunFolder
from velodrome.serving.model import is_exported
from velodrome.web import model_api
from velodrome.web.app import make_app, page
from velodrome.web.predicting import PREDICT, Predict
from velodrome.web.processes import Siblings
from velodrome.web.security import Security
from velodrome.web.served_models import ServedModels, facts_of


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

    routes = [Route("/", show), *model_api.ROUTES]
    direct = {PREDICT: Predict()}
    state = {"models": models, "siblings": siblings}
    return make_app(routes, security or security_of(host), lifespan=lifespan, state=state, direct=direct)


def security_of(host: str, **given: Any) -> Security:
    """What a server of models on this address accepts; `given` replaces what would be made up."""
    made = Security.for_address(host, open_posts=model_api.OPEN_POSTS, uploads=model_api.UPLOADS)
    return replace(made, **given)


async def show(request: Request) -> Response:
    """The page, with the inputs of models that are ready: the script fills them, and nothing has to move."""
    models: ServedModels = request.app.state.models
    slots = models.slots.values()
    ready = [facts_of(slot) for slot in slots if slot.model is not None]
    pictures = [one["picture"] for one in ready if one["picture"]]
    return page(
        request, "model.html", names=list(models.slots),
        needs_token=request.app.state.security.token is not None, about=" · ".join(map(_summary, ready)),
        problems=[f"{slot.name}: {slot.problem}" for slot in slots if slot.status == "failed"],
        pictures=bool(pictures), drawn=any(one["drawn"] for one in pictures),
        tests=any(one["examples"] for one in pictures), texts=any(one["kind"] == "text" for one in ready),
    )


def _summary(facts: dict[str, Any]) -> str:
    """As `describe` in `model.js` writes it."""
    right = facts["test"].get("accuracy")
    metric = f", {100 * right:.1f} % of the test set right" if right is not None else ""
    return f"{facts['model']} ({facts['engine']}) trained on {facts['dataset']}{metric}"

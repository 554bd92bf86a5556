"""The application of `velodrome serve`: the page of the models, and what programs ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from velodrome.api.runs import locate_run
from velodrome.run.store import RunFolder
from velodrome.run.verify import finished_result, job_of_saved_model
from velodrome.serving.model import is_exported
from velodrome.web import model_api
from velodrome.web.app import make_app, page
from velodrome.web.security import Security
from velodrome.web.served_models import ServedModels


def check_runs(names: Sequence[str], runs: Path) -> list[str]:
    """Refuse what has no model, before anything is served; those that must be exported first."""
    unready = []
    for name in names:
        path = locate_run(runs, name)
        if not is_exported(path / "model"):
            finished_result(RunFolder(path), "serve")
            job_of_saved_model(RunFolder(path))
            unready.append(name)
    return unready


def serve_app(
    names: Sequence[str], runs: Path, host: str = "127.0.0.1", *, mirror: str | None = None,
    security: Security | None = None,
) -> Starlette:
    """The page and the interface of these runs' models."""
    models = ServedModels(names, runs, mirror=mirror)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        models.begin()
        try:
            await models.settle()
            yield
        finally:
            await models.end()

    guarded = security or Security.for_address(
        host, open_posts=model_api.OPEN_POSTS, uploads=model_api.UPLOADS
    )
    routes = [Route("/", show), *model_api.ROUTES]
    return make_app(routes, guarded, lifespan=lifespan, state={"models": models})


async def show(request: Request) -> Response:
    models: ServedModels = request.app.state.models
    return page(request, "model.html", names=list(models.slots))

"""The application of `velodrome ui`: which pages there are, and what they share."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from velodrome.web import control_page, race_pages, run_page
from velodrome.web.app import make_app
from velodrome.web.index import RunIndex
from velodrome.web.processes import Boards, Control
from velodrome.web.security import Security
from velodrome.web.watch import Watches

NAVIGATION = (("/", "Races and runs"), ("/compare", "Compare"), ("/new", "New race"))


def routes() -> list[BaseRoute]:
    """Every page and answer of `velodrome ui`."""
    return [*race_pages.ROUTES, *control_page.ROUTES, *run_page.ROUTES]


def ui_app(runs: Path, security: Security) -> Starlette:
    """The pages of a folder of runs."""
    control, boards = Control(runs), Boards()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            boards.close()
            control.close()

    return make_app(
        routes(), security, navigation=NAVIGATION[:2] if security.read_only else NAVIGATION, lifespan=lifespan,
        state={"runs": runs, "index": RunIndex(runs, time.monotonic), "watches": Watches(runs), "control": control,
               "boards": boards},
    )

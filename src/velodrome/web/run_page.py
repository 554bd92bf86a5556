"""The page of a run: what happened in it, process by process, what it learned, its logs and its wrong test images."""

from __future__ import annotations

import io
import shlex
import subprocess
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from velodrome import files
from velodrome.data import catalogue
from velodrome.data.examples import ExamplePart
from velodrome.data.own.functions import is_function
from velodrome.errors import BadRequest, VelodromeError, printable
from velodrome.job.job import Job
from velodrome.models.model_files import DESCRIPTION
from velodrome.run.listing import Found
from velodrome.run.store import RunFolder
from velodrome.serving.model import LoadedModel, is_exported
from velodrome.tasks.correctness_bits import decode, fingerprint
from velodrome.web import run_view
from velodrome.web.app import JsonAnswer, full_name, page, quoted_path, run_of
from velodrome.web.processes import Boards
from velodrome.web.security import host_name, is_loopback

MOST_LINES = 400
_LONGEST = 4000
#: Bytes of a log that are searched, from its end.
_MOST_BYTES = 16 << 20


def names_of(folder: Path) -> list[str]:
    """The logs that a run has, by the name of their process. Links are not followed."""
    with suppress(OSError):
        return sorted(
            path.stem for path in (folder / "logs").glob("*.log")
            if path.is_file() and not files.is_linked(path, folder)
        )
    return []


def search(folder: Path, text: str = "", process: str = "") -> dict[str, Any]:
    """The last lines that contain a text, of one process or of all, and how many there are."""
    lines: deque[dict[str, Any]] = deque(maxlen=MOST_LINES)
    total, wanted = 0, text.lower()
    for name in names_of(folder):
        if process and name != process:
            continue
        for number, line in _lines(folder, folder / "logs" / f"{name}.log"):
            if not wanted or wanted in line.lower():
                total += 1
                lines.append({"process": name, "number": number, "text": printable(line, _LONGEST)})
    return {"lines": list(lines), "total": total}


def _lines(folder: Path, path: Path) -> list[tuple[int | None, str]]:
    try:
        with files.open_regular(path, inside=folder) as stream:
            size = path.stat().st_size
            stream.seek(max(0, size - _MOST_BYTES))
            text = stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return [(None, f"this log cannot be read: {error.strerror}")]
    lines = text.splitlines()
    if size > _MOST_BYTES:
        return [(None, line) for line in lines[1:]]
    return list(enumerate(lines, 1))


#: Images of a page.
MOST_IMAGES = 48
#: Pixels of the longer side of a picture, at least: small images are enlarged in whole steps.
_SIDE = 84


@dataclass(frozen=True)
class Wrong:
    """Test examples that were classified wrongly: their places in the test set, true and predicted classes by name."""

    places: list[int]
    classes: list[str]
    #: None where it is not known: a run records which answers were right, and not what they were.
    predicted: list[str | None]
    count: int
    total: int


#: The test part, the names of its classes, and what makes a byte lie between 0 and 1.
TestPart = tuple[ExamplePart, tuple[str, ...], float]


@lru_cache(maxsize=2)
def _test_part(dataset: str, seed: int, validation: float, bad_data: Any) -> TestPart:
    loaded = catalogue.load(dataset, seed=seed, validation=validation, bad_data=bad_data)
    return loaded.test, loaded.class_names, loaded.scale


def _part(job: Job) -> TestPart:
    if is_function(job.dataset) or job.dataset.startswith("shards:") or not catalogue.is_here(job.dataset):
        raise VelodromeError("its data is not on this disk, or comes from a function of yours")
    return _test_part(job.dataset, job.seed, job.validation, job.bad_data)


def wrong_of(folder: RunFolder) -> Wrong:
    """Which test images a run got wrong; an error says why that cannot be shown."""
    job, result = folder.job(), folder.result()
    test = result.test if result else None
    if result is None or test is None or test.answers is None or test.total is None:
        raise VelodromeError("this run did not record which examples it classified correctly")
    try:
        right = decode(test.answers, test.total)
        part, names, _ = _part(job)
    except (ValueError, OSError) as error:
        raise VelodromeError(str(error)) from None
    if len(part) != test.total or test.fingerprint not in (None, fingerprint(part.images, part.labels)):
        raise VelodromeError("the test set has changed since this run")
    places = np.flatnonzero(~right)
    shown = places[np.linspace(0, len(places) - 1, min(MOST_IMAGES, len(places))).astype(np.int64)]
    labels = part.labels[shown].tolist()
    given = _predicted(folder.path / "model", part.images[shown], labels, result.confusion or [])
    return Wrong(
        shown.tolist(), [_name(label, names) for label in labels],
        [None if predicted is None else _name(predicted, names) for predicted in given], len(places), test.total,
    )


def _name(label: int, names: tuple[str, ...]) -> str:
    return names[label] if label < len(names) else str(label)


def _predicted(model: Path, images: Any, labels: list[int], confusion: list[list[int]]) -> list[int | None]:
    """The predicted class of each image: by the exported model, or if the confusion matrix leaves only one."""
    if len(labels) and is_exported(model):
        try:
            loaded = LoadedModel(model, model.parent.name)
            predicted = loaded.scores({loaded.about.inputs[0].name: images}).argmax(1).tolist()
            return [given if given != label else None for given, label in zip(predicted, labels, strict=True)]
        except Exception:  # ONNX Runtime is not installed, or does not take what the folder holds
            pass
    return [_only_mistake(confusion[label], label) if label < len(confusion) else None for label in labels]


def _only_mistake(row: list[int], label: int) -> int | None:
    others = [place for place, count in enumerate(row) if count and place != label]
    return others[0] if len(others) == 1 else None


def picture(job: Job, place: int) -> bytes | None:
    """A test image as PNG; None if there is none at that place."""
    from PIL import Image

    part, _, scale = _part(job)
    if not 0 <= place < len(part):
        return None
    pixels = np.clip(part.images[place].astype(np.float32) * (scale * 255), 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3])
    times = -(-_SIDE // max(image.size))
    if times > 1:
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    out = io.BytesIO()
    image.save(out, format="PNG")
    return out.getvalue()


T = TypeVar("T")
#: Seconds that exporting a model may take.
_EXPORT_SECONDS = 600.0


async def show(request: Request) -> Response:
    run = await run_in_threadpool(run_of, request)
    names: dict[str, Any] = {"run": full_name(request), "race": request.path_params.get("race")}
    return await run_in_threadpool(lambda: page(request, "run.html", **_content(run), **names))


def _content(run: Found) -> dict[str, Any]:
    folder = RunFolder(run.path)
    result, problem = folder.read()
    if problem is not None:
        problem = f"{problem}: {shlex.join(['velodrome', 'runs', 'check', str(run.path)])} shows details"
    try:
        configuration = run_view.configuration_of(run.path)
    except VelodromeError as unreadable:
        configuration, problem = [], problem or str(unreadable)
    again = shlex.join([
        "velodrome", "train", str(run.path / "job.yaml"), "--name", f"{run.name[:110]}-again", "--runs",
        str(run.path.parent),
    ])
    usable = result is not None and result.status == "finished" and (run.path / "model" / DESCRIPTION).is_file()
    metric, score = run_view.score_of(result) if result else (None, None)
    return {
        "state": folder.status(), "result": result, "configuration": configuration, "problem": problem,
        "environment": run_view.environment_of(result) if result else [], "command": again,
        "serve": _serve_command(run) if usable else None,
        "metric": metric, "score": score,
        "notes": run_view.notes_of(result) if result else [], "history": result.as_json()["history"] if result else [],
        "confusion": run_view.confusion_of(result) if result else None, "logs": names_of(run.path),
        "resumable": folder.status() in ("interrupted", "failed"),
    }


async def view(request: Request) -> Response:
    run = await run_in_threadpool(run_of, request)
    return JsonAnswer(await run_in_threadpool(run_view.run_view, run.path))


async def stream(request: Request) -> Response:
    run = await run_in_threadpool(run_of, request)
    watches = request.app.state.watches
    answer: Response = watches.answer(request, watches.of(run.path, race=False))
    return answer


async def log_lines(request: Request) -> Response:
    run = await run_in_threadpool(run_of, request)
    query = request.query_params
    return JsonAnswer(await run_in_threadpool(
        search, run.path, query.get("q", "")[:200], query.get("process", "")[:120]
    ))


async def wrong(request: Request) -> Response:
    """The test images that were classified wrongly, or why they cannot be shown."""
    run = await run_in_threadpool(run_of, request)
    try:
        mistakes = await run_in_threadpool(wrong_of, RunFolder(run.path))
    except VelodromeError as error:
        return JsonAnswer({"images": [], "reason": str(error)})
    base = f"/api/runs/{quoted_path(full_name(request))}/images"
    return JsonAnswer({"count": mistakes.count, "total": mistakes.total, "images": [
        {"address": f"{base}/{place}", "place": place, "class": name, "predicted": predicted}
        for place, name, predicted in zip(mistakes.places, mistakes.classes, mistakes.predicted, strict=True)
    ]})


async def image(request: Request) -> Response:
    run = await run_in_threadpool(run_of, request)
    try:
        content = await run_in_threadpool(
            lambda: picture(RunFolder(run.path).job(), request.path_params["place"])
        )
    except VelodromeError:
        content = None
    if content is None:
        raise HTTPException(404, "There is no such test image.")
    return Response(content, media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})


async def tensorboard(request: Request) -> Response:
    """Start TensorBoard on this run, and return its address."""
    run = await run_in_threadpool(run_of, request)
    if not is_loopback(host_name(request.headers["host"])):
        raise BadRequest("TensorBoard listens on loopback only, and your browser is on another machine: start it "
                         f"yourself with tensorboard --logdir {run.path / 'tensorboard'}")
    if files.is_linked(run.path / "tensorboard", run.path):
        raise BadRequest(f"{str(run.path / 'tensorboard')!r} is a link, which is not followed")
    boards: Boards = request.app.state.boards
    return JsonAnswer({"address": await boards.address(run.path / "tensorboard")})


async def serve(request: Request) -> Response:
    """Start `velodrome serve` on the model of this run, and return its address."""
    run = await run_in_threadpool(run_of, request)
    if not is_loopback(host_name(request.headers["host"])):
        raise BadRequest("the model would answer on loopback only, and your browser is on another machine: start it "
                         f"yourself with {_serve_command(run)}")
    boards: Boards = request.app.state.boards
    return JsonAnswer({"address": await boards.model_address(run.path)})


async def export(request: Request) -> Response:
    """Export the model of this run, after which the page can tell what it predicts."""
    run = await run_in_threadpool(run_of, request)
    command = request.app.state.control.start(["export", str(run.path), f"--runs={request.app.state.runs}"])
    try:
        failed = await run_in_threadpool(command.process.wait, _EXPORT_SECONDS)
    except subprocess.TimeoutExpired:
        raise BadRequest(f"exporting the model takes longer than {_EXPORT_SECONDS:g} s: try again later") from None
    if failed:
        raise BadRequest(command.complaint())
    return JsonAnswer({"exported": run.name})


def _serve_command(run: Found) -> str:
    return shlex.join(["velodrome", "serve", str(run.path)])


def _routes() -> list[BaseRoute]:
    routes: list[BaseRoute] = []
    for name in ("{run}", "{race}/{run}"):
        api = f"/api/runs/{name}"
        routes += [
            Route(f"{api}/view", view), Route(f"{api}/stream", stream), Route(f"{api}/logs", log_lines),
            Route(f"{api}/wrong", wrong), Route(f"{api}/images/{{place:int}}", image),
            Route(f"{api}/tensorboard", tensorboard, methods=["POST"]), Route(f"{api}/serve", serve, methods=["POST"]),
            Route(f"{api}/export", export, methods=["POST"]), Route(f"/runs/{name}", show),
        ]
    return routes


ROUTES = _routes()

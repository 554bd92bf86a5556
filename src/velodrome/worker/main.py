"""The process that trains: takes its place, imports its engine, trains, and says how it ended."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from velodrome.engines.registry import engine_of
from velodrome.errors import BadRequest, PeerLost, PortTaken, VelodromeError
from velodrome.models.own import users_traceback
from velodrome.spec.job import Job
from velodrome.worker.context import Context
from velodrome.worker.events import Cause, Emitter
from velodrome.worker.host import claim_cores, die_with_parent, limit_threads, watch_lifeline
from velodrome.worker.sampler import Sampler


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m velodrome.worker", description=__doc__)
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--role", required=True, choices=["worker", "server", "chief"])
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--folder", required=True, type=Path, help="the run's folder")
    parser.add_argument("--slot", default="0/0", help="place among the computing processes of this host, as 0/2")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    parser.add_argument("--by-hand", action="store_true", help="keep the events here and show them to a person")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> NoReturn:
    """Run one process of a job; never returns, because frameworks may hang or crash while Python takes them down."""
    options = _parse(sys.argv[1:] if words is None else words)
    if options.by_hand:
        from velodrome.worker.by_hand import ByHand

        events: Emitter = ByHand(options.folder, options.role, options.rank)
    else:
        # Only events go to the standard output that the controller reads: what anybody prints goes to the log.
        events = Emitter(os.dup(1), options.role, options.rank)
        os.dup2(2, 1)
    if options.lifeline:
        die_with_parent()
        watch_lifeline()
    code = _work(options, events)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _work(options: argparse.Namespace, events: Emitter) -> int:
    try:
        job = Job.model_validate_json(os.environ["VELODROME_JOB"])
        slot, slots = map(int, options.slot.split("/"))
        threads = claim_cores(slot, slots, job.threads)
        limit_threads(threads)
        context = Context(
            job=job, role=options.role, rank=options.rank, folder=options.folder, events=events, threads=threads,
            resume=options.resume,
        )
        with ExitStack() as stack:
            if os.environ.get("VELODROME_MEASURE") != "0":
                sampler = Sampler(events, context.status)
                sampler.start()
                stack.callback(sampler.stop)
            with events.phase("import"):
                engine = import_module(engine_of(job).worker)
            engine.train(context)
    except BaseException as error:
        report(error, events)
        return 2 if isinstance(error, BadRequest) else 1
    if options.by_hand and context.is_chief:
        from velodrome.worker.by_hand import finish

        finish(options.run, context)
    return 0


def report(error: BaseException, events: Emitter) -> None:
    """Say why this process ends, with the user's own lines where they took part, and leave the rest in the log."""
    users = users_traceback(error)
    full = "".join(traceback.format_exception(error))
    sys.stderr.write(full)
    message = str(error).strip() or type(error).__name__
    cause: Cause = "engine"
    if isinstance(error, BadRequest):
        cause = "request"
    elif isinstance(error, PeerLost):
        cause = "peer"
    elif isinstance(error, PortTaken):
        cause = "port"
    elif isinstance(error, SystemExit):
        cause, message = "user", f"the model's code called sys.exit({error.code!r})"
    elif isinstance(error, OSError) and error.errno is not None:
        message = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    elif users is not None:
        cause = "user"
    if not isinstance(error, VelodromeError | OSError | SystemExit) or error.__class__ is OSError:
        message = f"{type(error).__name__}: {message}"
    events.emit("error", cause=cause, message=message, traceback=users)

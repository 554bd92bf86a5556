"""A training process: it pins its cores, imports its engine, trains, and reports how it ended."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from velodrome.catalog.engines.torch import Mesh
from velodrome.catalog.registry import engine_of
from velodrome.catalog.world import World
from velodrome.data.base import share_host
from velodrome.errors import (
    BadRequest,
    PeerLost,
    PortTaken,
    ScriptFailed,
    UserCodeError,
    UsersCodeFailed,
    VelodromeError,
    headline,
    if_full,
)
from velodrome.events.models import Cause
from velodrome.job.job import Job
from velodrome.models.own import graph_traceback, quoted_traceback, users_traceback
from velodrome.training.context import Context, Emitter
from velodrome.training.host import (
    avoid_missing_tiles,
    claim_cores,
    describe_process,
    die_with_parent,
    limit_threads,
    watch_lifeline,
)
from velodrome.training.listening import listening_at
from velodrome.training.sampler import CpuTime, heartbeat
from velodrome.variables import CHECK, EXPORT, INSTEAD, JOB, WORLD

#: How much longer than its supervisor a worker waits for its peers.
SUPERVISOR_FIRST_SECONDS = 10.0
_CAUSES: dict[type[BaseException], Cause] = {BadRequest: "request", PeerLost: "peer", PortTaken: "port",
                                               ScriptFailed: "user"}


def parse_options(words: list[str]) -> argparse.Namespace:
    """The command line of a training process."""
    parser = argparse.ArgumentParser(prog="python -m velodrome.training", description=__doc__)
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--role", required=True, help="its role in the job, as the strategy names it")
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--folder", required=True, type=Path, help="the run's folder")
    parser.add_argument("--slot", default="0/0", help="place among the computing processes of this host, as 0/2")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    parser.add_argument(
        "--supervised", action="store_true", help="wait longer for peers than the limit, so that a supervisor that "
        "sees all processes reports first who is missing",
    )
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> NoReturn:
    """Run one process of a job; never returns, because frameworks may hang or crash while Python takes them down."""
    options = parse_options(sys.argv[1:] if words is None else words)
    # Only events go to the standard output that the controller reads: what anybody prints goes to the log.
    events = Emitter(os.dup(1), options.role, options.rank)
    os.dup2(2, 1)
    if options.lifeline:
        die_with_parent()
        watch_lifeline()
    code = 0
    try:
        work(options, events)
    except BaseException as error:
        with suppress(OSError):  # who reads it may be gone, the disk may be full
            report(error, events)
        code = exit_code_of(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def work(options: argparse.Namespace, events: Emitter) -> None:
    """Train this process's part of the job that the environment describes, or do what it is to do instead."""
    events.emit("hello", **describe_process(os.environ.get(JOB)))
    cpu_time = CpuTime()  # of all cores of the job: this process is not pinned yet
    context = read_context(options, events)
    job, world = context.job, context.world
    share_host(world.most_on_a_host("worker"))
    with ExitStack() as stack:
        if any(member.port for member in world.members):
            stack.enter_context(listening_at(world.me.host))
        stack.enter_context(heartbeat(events, context.status, cpu_time))
        if job.script is not None:
            from velodrome.training import script

            script.run(context)
            return
        with events.phase("import"):
            engine = import_module(engine_of(job).worker)
        if context.export_to is not None:
            from velodrome.training import actions

            actions.export(context, context.export_to)
        else:
            engine.train(context)


def read_context(options: argparse.Namespace, events: Emitter) -> Context:
    """Parse the job and its world from the environment, and give this process its cores and threads."""
    job = Job.model_validate_json(os.environ[JOB])
    if options.supervised:
        job = job.model_copy(update={"start_timeout": job.start_timeout + SUPERVISOR_FIRST_SECONDS})
    slot, slots = map(int, options.slot.split("/"))
    threads = claim_cores(slot, slots, job.threads)
    limit_threads(threads)
    avoid_missing_tiles()
    context = Context(
        job=job, world=World.from_json(os.environ[WORLD], options.role, options.rank), folder=options.folder,
        events=events, threads=threads, resume=options.resume,
    )
    if instead := os.environ.get(INSTEAD):
        _set_action(context, instead)
    return context


def _set_action(context: Context, instead: str) -> None:
    """Let a process do this instead of training: `check`, the evaluation of the model saved in that folder, or its
    export."""
    from velodrome.training import actions

    if instead.startswith(CHECK):
        workers, _, mesh = instead.removeprefix(CHECK).partition(":")
        context.action = partial(actions.check, workers=int(workers), mesh=Mesh.parse(mesh) if mesh else None)
    elif instead.startswith(EXPORT):
        context.export_to = Path(instead.removeprefix(EXPORT))
    else:
        context.saved_model, context.action = Path(instead), actions.evaluate_saved


def exit_code_of(error: BaseException) -> int:
    """130 for Ctrl-C, 2 for a job that cannot be done as requested, 1 for anything else."""
    return 130 if isinstance(error, KeyboardInterrupt) else 2 if isinstance(error, BadRequest) else 1


def _cause(error: BaseException, users: str | None) -> Cause:
    for kind, cause in _CAUSES.items():
        if isinstance(error, kind):
            return cause
    return "user" if users is not None or isinstance(error, SystemExit) else "engine"


def _sentence(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the model's code called sys.exit({error.code!r})"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    if isinstance(error, OSError) and error.errno is not None:
        return (f"{error.strerror}: {error.filename}" if error.filename else str(error)) + if_full(error)
    if isinstance(error, VelodromeError):
        return str(error).strip()
    first = headline(str(error))
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def report(error: BaseException, events: Emitter) -> None:
    """Report why this process ends, with the user's own lines if they are involved; the log has the whole traceback.

    Of a refusal, which names the user's line in its sentence, `velodrome check` shows the lines as well.
    """
    raised = error.__cause__ if isinstance(error, UserCodeError | UsersCodeFailed) and error.__cause__ else error
    users = users_traceback(raised) or quoted_traceback(str(raised)) or graph_traceback(str(raised))
    if users is None and os.environ.get(INSTEAD, "").startswith(CHECK) and error.__cause__ is not None:
        users = users_traceback(error.__cause__)
    with suppress(OSError):
        sys.stderr.write("".join(traceback.format_exception(error)))
    events.emit("error", cause=_cause(error, users), message=_sentence(error), traceback=users)


if __name__ == "__main__":
    main()

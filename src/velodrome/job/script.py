"""Jobs that run a script of the user's own: which fields they have, their arguments, and patterns on their output."""

from __future__ import annotations

import re
import shlex
from typing import Any

from velodrome.catalog.registry import engine
from velodrome.catalog.script import LABEL
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.script_arguments import NAMES, fields_in, filled

#: Fields that mean something for a script; it decides the others itself.
FIELDS = frozenset({
    "script", "script_args", "read", "engine", "framework", "strategy", "workers", "threads", "seed", "target",
    "start_timeout", "stall_timeout", "faults", "checkpoints",
})
#: Characters of a pattern: nobody reads longer ones, and compiling them takes time.
LONGEST_PATTERN = 1_000
#: Groups of a pattern that are no figures.
COUNTS = ("step", "examples", "epoch")


def resolve_script(job: Job, default_engine: str) -> Job:
    """The same job with every default filled in, or `BadRequest`."""
    assert job.script is not None
    if "engine" not in job.model_fields_set:
        job = job.model_copy(update={"engine": default_engine})
    chosen = engine(job.engine, job.framework)
    if job.strategy not in (_default("strategy"), LABEL):
        raise BadRequest(f"--strategy {job.strategy!r}: a script brings its own distribution; leave strategy out")
    for name, label in (("dataset", LABEL), ("model", job.script)):
        if getattr(job, name) == label:
            job = job.model_copy(update={name: _default(name)})
    passed_on = fields_in(job.script_args)
    for name in Job.model_fields:
        if name not in FIELDS | passed_on and getattr(job, name) != _default(name):
            option = f"--{name.replace('_', '-')}"
            passing = f" as {{{name}}}" if name in NAMES else ""
            raise BadRequest(
                f"{option}: a script decides that itself; leave it out, or pass it in --script-args{passing} if it has "
                "such an argument"
            )
    words_of(job)
    for pattern in job.read:
        check_pattern(pattern)
    return job.model_copy(
        update={"strategy": LABEL, "dataset": LABEL, "model": job.script, "framework": chosen.framework}
    )


def refuse_without_script(job: Job) -> None:
    """Refuse fields that mean nothing without a script."""
    for name in ("script_args", "read"):
        if getattr(job, name):
            raise BadRequest(f"--{name.replace('_', '-')} is for a script of your own: name it with --script")
    for name in ("strategy", "dataset", "task"):
        if getattr(job, name) == LABEL:
            raise BadRequest(f"--{name} {LABEL!r} is for a script of your own: name it with --script")


def words_of(job: Job) -> list[str]:
    """The arguments of the script, as a shell would split them, with the job's values for placeholders."""
    try:
        return shlex.split(filled(job))
    except ValueError as error:
        raise BadRequest(f"--script-args {job.script_args!r} cannot be split into words: {error}") from None


def check_pattern(text: str) -> None:
    """Refuse what is no regular expression with a named group."""
    if len(text) > LONGEST_PATTERN:
        raise BadRequest(f"--read: a pattern has at most {LONGEST_PATTERN:,} characters, and this has {len(text):,}")
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadRequest(f"--read {text!r} is not a regular expression: {error}") from None
    if not pattern.groupindex:
        raise BadRequest(f"--read {text!r} has no named group: write one such as 'loss: (?P<loss>[0-9.]+)'")


def _default(name: str) -> Any:
    return Job.model_fields[name].get_default(call_default_factory=True)

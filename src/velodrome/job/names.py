"""Names of runs: which are valid, and the default."""

from __future__ import annotations

import re
import time

from velodrome.errors import BadRequest
from velodrome.job.job import Job

LONGEST_NAME = 120
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


def check_name(name: str) -> str:
    """Refuse a name that is not one plain folder, or that other programs and systems might not take."""
    if not _NAME.fullmatch(name):
        others = ", ".join(map(repr, [*dict.fromkeys(re.findall(r"[^A-Za-z0-9._-]", name))][:5]))
        raise BadRequest(
            f"--name {name!r}: a name has the letters A to Z and a to z, digits, '.', '_' and '-'"
            + (f", and not {others}" if others else "")
            + f"; it begins with a letter or digit and has at most {LONGEST_NAME} characters"
        )
    return name


def default_name(job: Job) -> str:
    """The default name of a run: engine, strategy, processes, data, model, time."""
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", job.model)
    stock = ["stock"] if job.implementation == "stock" else []
    parts = [job.engine, *([job.framework] if job.framework else []), job.strategy, *stock, f"{job.workers}w"]
    parts += [job.dataset, model, f"{job.batch_size}b"] if job.script is None else [model]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).lstrip("._-")
    return f"{name[:90]}-{time.strftime('%y%m%d-%H%M%S')}"

"""Scripts of the user's own: placeholders such as `{64/workers}` in their arguments, batch and length, how several
differ, and which fields of a job they have."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from velodrome import files
from velodrome.catalog.base import SCRIPT_LABEL
from velodrome.catalog.registry import engine
from velodrome.catalog.world import World, cluster_of, task_of
from velodrome.errors import BadRequest, similar_names, which_name
from velodrome.job.job import Job, default_of, flag, job_fields

#: Fields of a job that placeholders may name.
NAMES = ("workers", "seed", "threads", "batch_size", "epochs", "steps")
#: Placeholders that differ by process: its role and rank as TensorFlow calls them, and the addresses of all.
PROCESS_NAMES = ("role", "index", "ps_hosts", "worker_hosts")
#: What scripts call them.
_CALLED = {"job_name": "role", "task_type": "role", "task_index": "index", "task_id": "index"}
_PLACEHOLDER = re.compile(r"\{([\w\s+*/()-]{1,80})\}")
_BATCH = re.compile(r"(?<!\S)(--?(?:[a-z]+[-_])*(?:batch[-_]?size|batch|bs|b))(=|\s+)(\d+)(?!\S)", re.IGNORECASE)
_BATCH_FLAG = re.compile(r"--?(?:[a-z]+[-_])*(?:batch[-_]?size|batch|bs|b)", re.IGNORECASE)
#: Options that say how long a script trains.
_LENGTH_FLAGS = {
    what: re.compile(rf"--?(?:(?:max|num|total|n)[-_]?)?(?:train[-_]?)?(?:{words})")
    for what, words in (("steps", "steps?|iters?|iterations?|batches"), ("epochs", "epochs?"))
}
#: What placeholders compute with.
_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
}
#: Characters of a script in which defaults of its arguments are looked for.
LONGEST_SCRIPT = 500_000


def filled(job: Job, world: World | None = None) -> str:
    """The arguments with the job's values in place of placeholders; what differs by process only with its world."""
    ours = {} if world is None else _process_values(world)

    def fill(match: re.Match[str]) -> str:
        return str(_value(match[1], job)) if _is_meant(match[1]) else ours.get(match[1].strip(), match[0])

    return _PLACEHOLDER.sub(fill, job.script_args)


def _process_values(world: World) -> Mapping[str, str]:
    task, index = task_of(world)
    hosts = cluster_of(world)
    return dict(zip(PROCESS_NAMES, (task, str(index), ",".join(hosts.get("ps", ())), ",".join(hosts["worker"])),
                    strict=True))


def _usual_arguments(script: str) -> str:
    """The arguments by which scripts with parameter servers usually get their roles and addresses, if its text declares
    all of them; empty for one that reads `TF_CONFIG` or something of its own."""
    source = ""
    with suppress(OSError, ValueError):
        source = files.read_text(script, LONGEST_SCRIPT)
    usual = {"job_name": "role", "task_index": "index", "ps_hosts": "ps_hosts", "worker_hosts": "worker_hosts"}
    if not all(re.search(rf"""["'](?:--)?{name}["']""", source) for name in usual):
        return ""
    return " ".join(f"--{name}={{{value}}}" for name, value in usual.items())


def _check_process_names(job: Job) -> None:
    """Refuse placeholders of parameter servers in a job that has none, and in one that has some also names that are
    similar to ours, which would otherwise be left to the script."""
    for match in _PLACEHOLDER.finditer(job.script_args):
        name = match[1].strip()
        if name == "ps_hosts" and not job.servers:
            raise BadRequest(f"--script-args {job.script_args!r}: '{{ps_hosts}}' are the addresses of parameter "
                             "servers, and this job has none: give --servers 1")
        if not job.servers or name in (*NAMES, *PROCESS_NAMES) or not name.isidentifier():
            continue
        if name in _CALLED or similar_names(name, PROCESS_NAMES):
            meant = f"write {{{_CALLED[name]}}}" if name in _CALLED else which_name(name, PROCESS_NAMES)
            raise BadRequest(f"--script-args {job.script_args!r}: there is no placeholder '{{{name}}}': {meant}")


def fields_in(arguments: str) -> frozenset[str]:
    """The fields of a job that placeholders name."""
    inside = (match[1] for match in _PLACEHOLDER.finditer(arguments) if _is_meant(match[1]))
    return frozenset(name for text in inside for name in re.findall(r"[A-Za-z_]\w*", text) if name in NAMES)


def _is_meant(text: str) -> bool:
    """Whether braces are a placeholder of ours: scripts have others of their own, such as `{rank}`."""
    names, computes = re.findall(r"[A-Za-z_]\w*", text), re.search(r"[+*/-]", text) is not None
    return any(name in NAMES for name in names) or (computes and bool(names) and re.search(r"\b\d", text) is not None)


def _value(text: str, job: Job) -> int:
    def refuse(reason: str) -> BadRequest:
        return BadRequest(f"--script-args {job.script_args!r}: '{{{text}}}' {reason}")

    def of(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return value
            case ast.Name(id=name):
                if name not in NAMES:
                    raise refuse(f"names {name!r}, which is not a field: {which_name(name, NAMES)}")
                if (value := getattr(job, name)) is None:
                    raise refuse(f"needs {name}, which has no value: give {flag(name)}")
                return int(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -of(operand)
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
                first, second = of(left), of(right)
                if isinstance(operation, ast.Div) and (second == 0 or first % second):
                    raise refuse(f"is {first}/{second}, which is not a whole number: choose numbers that divide evenly")
                return _OPERATIONS[type(operation)](first, second)
        raise refuse("can have whole numbers, names of fields, + - * / and parentheses only")

    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        raise refuse("cannot be read: write it as {64/workers}") from None
    return of(tree.body)


def batch_note(jobs: Iterable[Job], source: str = "") -> str:
    """What becomes of the global batch where the workers of a script vary and no argument depends on them, and how to
    keep it; empty if that is no question. `source` is the text of the script."""
    open_ones = [job for job in jobs if "workers" not in fields_in(job.script_args)]
    counts = sorted({job.workers for job in open_ones})
    if len(counts) < 2:
        return ""
    match = next(filter(None, (_BATCH.search(job.script_args) for job in open_ones)), None)
    flag, size, where = (match[1], int(match[3]), "") if match else (
        *_declared(source, _BATCH_FLAG), " (the script's default)")
    if not flag:
        return ("if the script's batch size is per process, as in most DDP scripts, the global batch grows with the "
                f"workers ({counts[0]} to {counts[-1]}), which is not the same training; to keep it, divide it: "
                "--script-args \"--batch-size {64/workers}\", by whatever name the script has for it")
    sizes = " and ".join(f"{size * count} with {count} worker{'' if count == 1 else 's'}"
                         for count in (counts[0], counts[-1]))
    instead = divided_batch(match[0] if match else f"{flag} {size}")
    return (f"the global batch grows with the workers if {flag} {size}{where} is per process, as in most DDP scripts: "
            f"{sizes}, which is not the same training; to keep it, write "
            f"{instead}{'' if match else ' in --script-args'}")


def batch_notes(jobs: Iterable[Job]) -> list[str]:
    """A sentence for each script whose global batch may grow with its workers."""
    jobs_of: dict[str, list[Job]] = {}
    for job in jobs:
        if job.script is not None:
            jobs_of.setdefault(job.script, []).append(job)
    notes = []
    for script, its_jobs in jobs_of.items():
        source = ""
        with suppress(OSError, ValueError):
            source = files.read_text(script, LONGEST_SCRIPT)
        notes.append(batch_note(its_jobs, source))
    return list(filter(None, notes))


def divided_batch(arguments: str) -> str:
    """The argument that keeps the global batch: the one for the batch divided by the workers, or an example."""
    match = _BATCH.search(arguments)
    return f"{match[1]}{match[2]}{{{match[3]}/workers}}" if match else "--batch-size {64/workers}"


def is_length(flag: str) -> bool:
    """Whether an option says how long a script trains."""
    return any(pattern.fullmatch(flag) for pattern in _LENGTH_FLAGS.values())


def lengths(arguments: str, source: str = "") -> dict[str, int]:
    """How many `steps` or `epochs` a script trains: by its arguments, or else by the defaults that it declares in its
    text, `source`."""
    options = options_of(arguments)
    numbers: dict[str, int] = {}
    for what, pattern in _LENGTH_FLAGS.items():
        value = next((value for flag, value in options.items() if pattern.fullmatch(flag)), None)
        number = str(_declared(source, pattern)[1] if value is None else value)
        if re.fullmatch(r"[1-9]\d{0,9}", number):
            numbers[what] = int(number)
    return numbers


def options_of(text: str) -> dict[str, str]:
    """Options with their values; other words by their place."""
    try:
        words = shlex.split(text)
    except ValueError:
        return {"": text}
    options: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word):
            name, _, value = word.partition("=")
            options[name] = value
        else:
            options[name or f"word {len(options)}"] = word
            name = ""
    return options


def _declared(source: str, wanted: re.Pattern[str]) -> tuple[str, int]:
    """The argument that a script declares by argparse, of those whose name is like this, and its default; nothing if it
    has none."""
    try:
        tree = ast.parse(source[:LONGEST_SCRIPT])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", 0
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"):
            continue
        names = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        flags = [name for name in names if wanted.fullmatch(name)]
        for keyword in node.keywords:
            if flags and keyword.arg == "default" and isinstance(keyword.value, ast.Constant) \
                    and type(size := keyword.value.value) is int and size > 0:
                return max(flags, key=len), size
    return "", 0


def differences(arguments: Sequence[str]) -> Mapping[str, str]:
    """Each of several arguments by what distinguishes it from the others: `--lr 0.1` of `--epochs 9 --lr 0.1`.

    One that has nothing but what all have is given whole.
    """
    parts = {text: _options(text) for text in arguments}
    common = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    short = {text: " ".join(part for part in words if part not in common) or text for text, words in parts.items()}
    return short if len(set(short.values())) == len(short) else {text: text for text in parts}


def _options(text: str) -> list[str]:
    """Arguments with their values: a word that begins with a dash, and those after it that do not."""
    try:
        words = [shlex.quote(word) for word in shlex.split(text)]
    except ValueError:
        words = text.split()
    parts: list[str] = []
    for word in words:
        begins = word.startswith("-") and not re.fullmatch(r"-[\d.]+", word)
        if begins or not parts or not parts[-1].startswith("-"):
            parts.append(word)
        else:
            parts[-1] += f" {word}"
    return parts


#: Fields that mean something for a script; it decides the others itself.
FIELDS = frozenset({
    "script", "script_args", "read", "engine", "framework", "strategy", "workers", "servers", "threads", "seed",
    "target", "start_timeout", "stall_timeout", "faults", "checkpoints",
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
    if job.strategy not in (default_of("strategy"), SCRIPT_LABEL):
        raise BadRequest(f"--strategy {job.strategy!r}: a script brings its own distribution; leave strategy out")
    for name, label in (("dataset", SCRIPT_LABEL), ("model", job.script)):
        if getattr(job, name) == label:
            job = job.model_copy(update={name: default_of(name)})
    passed_on = fields_in(job.script_args)
    for name in job_fields():
        if name not in FIELDS | passed_on and getattr(job, name) != default_of(name):
            passing = f" as {{{name}}}" if name in NAMES else ""
            raise BadRequest(
                f"{flag(name)}: a script decides that itself; leave it out, or pass it in --script-args{passing} if it "
                "has such an argument"
            )
    if job.servers and not any(f"{{{name}}}" in job.script_args for name in PROCESS_NAMES):
        job = job.model_copy(update={"script_args": f"{job.script_args} {_usual_arguments(str(job.script))}".strip()})
    _check_process_names(job)
    words_of(job)
    for pattern in job.read:
        check_pattern(pattern)
    return job.model_copy(
        update={"strategy": SCRIPT_LABEL, "dataset": SCRIPT_LABEL, "model": job.script, "framework": chosen.framework}
    )


def refuse_without_script(job: Job) -> None:
    """Refuse fields that mean nothing without a script."""
    for name in ("script_args", "read"):
        if getattr(job, name):
            raise BadRequest(f"{flag(name)} is for a script of your own: name it with --script")
    for name in ("strategy", "dataset", "task"):
        if getattr(job, name) == SCRIPT_LABEL:
            raise BadRequest(f"--{name} {SCRIPT_LABEL!r} is for a script of your own: name it with --script")


def words_of(job: Job, world: World | None = None) -> list[str]:
    """The arguments of the script, as a shell would split them, with the values of the job and of one of its processes
    for placeholders."""
    try:
        return shlex.split(filled(job, world))
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

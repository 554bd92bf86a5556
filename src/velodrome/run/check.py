"""Whether a run folder is as documented: its files, events and result, epochs in order, counts that add up.

Reads any folder, also one that was copied from elsewhere, and names everything that is wrong; changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from velodrome import files
from velodrome.catalog.models import is_own
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events import LONGEST_LINE, MOST_STRANGE, PREFIX, event_files, sentences
from velodrome.events.fields import SCHEMA_VERSION
from velodrome.events.models import EpochEvent, Event, EventBase, HelloEvent, PhaseEvent, ResultEvent
from velodrome.events.result import RunResult
from velodrome.files import walk
from velodrome.job.result import BadResult
from velodrome.models.model_files import DESCRIPTION, read_description
from velodrome.run.listing import runs_of
from velodrome.run.result_checks import contradictions
from velodrome.run.store import LARGEST_RESULT, RunFolder, read_race

#: Nobody reads more lines than this about one kind of mistake.
_MOST = 5
#: How pydantic calls a line that holds no JSON object.
_NO_OBJECT = ("json_invalid", "model_attributes_type")


@dataclass
class Checked:
    """What was found in one run folder; without problems it is complete."""

    path: Path
    status: str = "unreadable"
    events: int = 0
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"run": self.path.name, "path": str(self.path), "status": self.status, "events": self.events,
                "ok": not self.problems, "problems": self.problems}


def check_run(path: Path) -> Checked:
    """Check one run folder."""
    checked = Checked(path)
    folder = RunFolder(path)
    if not path.is_dir():
        checked.problems.append(f"{path} is not a folder")
        return checked
    checked.status = folder.status()
    job = _check_job(folder, checked.problems)
    _check_plan(path, checked.problems)
    log = _EventLog(checked.problems)
    files = event_files(path)
    if not files:
        checked.problems.append("events.jsonl is missing")
    for file in files:
        log.read(file, killed=checked.status in ("running", "interrupted"))
    checked.events = log.count
    result = _check_result(path, checked.problems)
    if result is not None:
        checked.problems += contradictions(result, job, log.epochs, log.result)
    elif checked.status != "running" and not (path / "result.json").exists():
        checked.problems.append("result.json is missing: the run was interrupted before it could write how it ended")
    _check_model(path / "model", job, checked.problems)
    for name in ("logs", "checkpoints", "tensorboard", "model"):
        if (path / name).exists() and not (path / name).is_dir():
            checked.problems.append(f"{name} is not a folder")
    if checked.status != "running":
        checked.problems += _half_written(path)
    return checked


def _half_written(path: Path) -> list[str]:
    try:
        partial = [top / name for top, _, names in walk(path) for name in names if name.endswith(files.PARTIAL)]
    except OSError as error:
        return [str(error.strerror)]
    return [f"{half.relative_to(path)} was left half written" for half in sorted(partial)]


def check_race(path: Path) -> list[Checked]:
    """Check the runs of a race; its own folder is among them if its race.yaml cannot be read."""
    try:
        read_race(path)
        checked = []
    except VelodromeError as error:
        checked = [Checked(path, problems=[str(error).removeprefix("its ")])]
    return checked + [check_run(run.path) for run in runs_of(path)]


def _check_job(folder: RunFolder, problems: list[str]) -> Mapping[str, Any]:
    if not (folder.path / "job.yaml").is_file():
        problems.append("job.yaml is missing")
        return {}
    try:
        return folder.job().model_dump()
    except VelodromeError as error:
        problems.append(f"job.yaml: {' '.join(str(error).partition(': ')[2].split())}")
        return {}


def _check_plan(path: Path, problems: list[str]) -> None:
    try:
        plan = files.read_json(path / "plan.json", LARGEST_RESULT, inside=path)
    except FileNotFoundError:
        return  # a run that was started manually or ended early has none
    except (OSError, ValueError) as error:
        problems.append(f"plan.json cannot be read: {error}")
        return
    if not isinstance(plan, dict) or not isinstance(plan.get("processes"), list):
        problems.append("plan.json has no list of processes")


def _check_model(folder: Path, job: Mapping[str, Any], problems: list[str]) -> None:
    """Whether the saved model is the one that the job names, and asks for no code if that is of the zoo."""
    if not (folder / DESCRIPTION).exists():
        return
    try:
        about = read_description(folder, str(job.get("model")))
    except (OSError, ValueError, BadRequest) as error:
        problems.append(f"model/{DESCRIPTION}: {error}")
        return
    if not is_own(about["model"]) and (about.get("custom_objects") or not about.get("safe_mode", True)):
        problems.append(f"model/{DESCRIPTION}: it names code, which a model of the zoo never needs, and which is never "
                        "used: it was altered")


def _starts(event: EventBase) -> bool:
    """Whether it is the first event of a process; before `hello` was added that was the phase `import`."""
    return isinstance(event, HelloEvent) or (
        isinstance(event, PhaseEvent) and event.phase == "import" and event.state == "begin"
    )


class _EventLog:
    """Reads the events of a run one by one and keeps what the result is compared with."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._reported: dict[str, int] = {}
        self._validator: TypeAdapter[Event] = TypeAdapter(Event)
        self.count = 0
        self.epochs: dict[int, EpochEvent] = {}
        self.result: ResultEvent | None = None
        self._last_epoch = self._last_steps = 0

    def read(self, file: Path, *, killed: bool) -> None:
        """Read a file. A process that is killed while it writes leaves half a line: at the end, or before a resume."""
        half: int | None = None
        strange = 0
        try:
            for number, line in files.numbered_lines(file, LONGEST_LINE, inside=file.parent):
                is_object, event = self._parse(line, f"{file.name}, line {number}")
                if half is not None and not (event is not None and _starts(event)):
                    self._report_half(file, half)
                half = None if is_object else number
                strange += event is None
                if strange > MOST_STRANGE:
                    self._problems.append(
                        f"{file.name} has more than {MOST_STRANGE:,} lines that are not events; reading stopped at "
                        f"line {number:,}"
                    )
                    return
        except OSError as error:
            self._problems.append(f"{file.name} cannot be read: {error.strerror}")
        if half is not None and not killed:
            self._report_half(file, half)

    def _parse(self, line: str, where: str) -> tuple[bool, Event | None]:
        """Take the event of a line; whether the line is a JSON object at all, and its event if it is a valid one."""
        try:
            event = self._validator.validate_json(line.removeprefix(PREFIX))
        except ValidationError as error:
            if error.errors(include_url=False)[0]["type"] in _NO_OBJECT:
                return False, None
            self.count += 1
            for problem in sentences(error, union=True):
                self._report(problem[:30], f"{where}: the event {problem}")
            return True, None
        self.count += 1
        self._take(event, where)
        return True, event

    def _report_half(self, file: Path, number: int) -> None:
        self._report("half", f"{file.name}, line {number} is not an event: it was cut off or altered")

    def _report(self, kind: str, problem: str) -> None:
        self._reported[kind] = self._reported.get(kind, 0) + 1
        if self._reported[kind] <= _MOST:
            self._problems.append(problem)
        elif self._reported[kind] == _MOST + 1:
            self._problems.append("… and more of this kind")

    def _take(self, event: Event, where: str) -> None:
        if isinstance(event, HelloEvent) and (event.schema_version or 0) > SCHEMA_VERSION:
            self._report("schema", f"{where}: {_newer(event.schema_version)}")
        if _starts(event):
            self._last_epoch = self._last_steps = 0  # a resumed run reports its last epoch again
        elif isinstance(event, EpochEvent):
            self._take_epoch(event, where)
        elif isinstance(event, ResultEvent):
            self.result = event

    def _take_epoch(self, event: EpochEvent, where: str) -> None:
        if event.epoch <= self._last_epoch:
            self._report("order", f"{where}: epoch {event.epoch} comes after epoch {self._last_epoch}")
        if event.steps < self._last_steps:
            self._report("steps", f"{where}: {event.steps} steps were done after {self._last_steps}")
        self._last_epoch, self._last_steps = event.epoch, event.steps
        self.epochs[event.epoch] = event


def _newer(version: int | None) -> str:
    return f"schema {version} is newer than {SCHEMA_VERSION}, which this version of Velodrome writes"


def _check_result(path: Path, problems: list[str]) -> RunResult | None:
    """Read the result, if its fields are as documented."""
    try:
        result = RunFolder(path).parse()
    except FileNotFoundError:
        return None
    except BadResult as error:
        problems += [f"result.json {problem}" for problem in error.sentences]
        return None
    except OSError as error:
        problems.append(f"result.json cannot be read: {error.strerror}")
        return None
    if result.schema_version > SCHEMA_VERSION:
        problems.append(f"result.json: {_newer(result.schema_version)}")
    if result.status == "finished" and result.test is None and result.script is None:
        problems.append("result.json has status finished and no test")
    if result.status != "finished" and result.error is None:
        problems.append("result.json does not say why the run ended")
    return result

"""Writes docs/reference/*.md from the code itself: commands, job fields, engines, events, run folders and results.

    python docs/generate_reference.py            # write the pages
    python docs/generate_reference.py --check    # name those that are out of date; exit code 1 if any
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

sys.path.insert(0, str(Path(__file__).resolve().parent))
from engine_matrix import matrix_section
from fault_matrix import matrix_page
from record_tables import field_rows
from reference_words import FOLDER

from velodrome.catalog.base import Engine
from velodrome.catalog.models import MODELS
from velodrome.catalog.registry import all_forms, options_of
from velodrome.cli.main import COMMANDS, loaded
from velodrome.clusters import launchers
from velodrome.events import PREFIX
from velodrome.events.fields import SCHEMA_VERSION
from velodrome.events.models import MODELS as EVENT_MODELS
from velodrome.events.models import EventBase
from velodrome.events.result import RunResult
from velodrome.job.job import flag, job_fields, job_groups
from velodrome.job.names import abbreviations
from velodrome.job.race import Race

FOLDER_OF_PAGES = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- Written by docs/generate_reference.py: change the code, then run `make docs`. -->\n"


def table(headings: list[str], rows: list[list[str]]) -> str:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [headings, ["---"] * len(headings), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _default(field: Any) -> str:
    """The default of a field; nothing where it is empty."""
    value = field.get_default(call_default_factory=True)
    return f"`{value}`" if value not in ("", []) else ""


# Commands


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, as registered with typer; those that stand alone first."""
    groups = {name: loaded(name).registered_commands for name in COMMANDS}
    for name, held in sorted(groups.items(), key=lambda item: len(item[1]) > 1):
        for command in held:
            below = "" if command.name == name else f" {command.name}"
            yield f"velodrome {name}{below}", command.callback


def spelling(parameter: inspect.Parameter) -> list[str]:
    """How an option or argument is written. Inside Annotated, typer keeps an option's first name as its `default`."""
    info = get_args(parameter.annotation)[1]
    first = [info.default] if isinstance(info.default, str) else []
    return [*first, *(getattr(info, "param_decls", None) or ())] or [info.metavar or parameter.name.upper()]


def takes_jobs(callback: Any) -> bool:
    """Whether a command has every field of a job as an option; a few of them with the same name are its own."""
    return job_fields().keys() <= inspect.signature(callback).parameters.keys()


def option_rows(callback: Any) -> list[list[str]]:
    """A command's own options; those of a job have a page to themselves."""
    rows = []
    elsewhere = job_fields() if takes_jobs(callback) else {}
    for parameter in inspect.signature(callback, eval_str=True).parameters.values():
        if get_origin(parameter.annotation) is not Annotated or parameter.name in elsewhere:
            continue
        info = get_args(parameter.annotation)[1]
        default = parameter.default
        shown = f" [default: {default}]" if default not in (None, False, inspect.Parameter.empty) else ""
        rows.append([" ".join(f"`{name}`" for name in spelling(parameter)), (info.help or "").rstrip(".") + shown])
    return rows


def commands_page() -> str:
    parts = [NOTE, "# Commands\n", "Every command has `--help` with examples, and `--json` for scripts.\n"]
    for name, callback in commands():
        about = inspect.cleandoc(callback.__doc__ or "")
        parts.append(f"## `{name}`\n\n{about}\n")
        parts.append(table(["argument or option", "meaning"], option_rows(callback)))
        if takes_jobs(callback):
            parts.append("It also takes [every field of a job](job.md) as an option.\n")
    parts.append(
        "## Exit codes\n\n"
        + table(["code", "meaning"], [
            ["0", "done"], ["1", "a run started and failed, or something went wrong"],
            ["2", "the request is not valid: nothing was started, or no process can fulfil it"], ["130", "Ctrl-C"],
        ])
        + "\n## Environment\n\n"
        + table(["variable", "meaning"], [
            ["`VELODROME_CACHE`", "folder that keeps data sets (`~/.cache/velodrome`)"],
            ["`VELODROME_DATA_MIRROR`", "folder or URL with the files of data sets"],
            ["`VELODROME_ENVIRONMENTS`", "folder of engines' environments (`~/.local/share/velodrome/environments`)"],
            ["`VELODROME_MEASURE`", "seconds between samples of a process [1]; `0` for none, to see what they cost"],
        ])
    )
    return "\n".join(parts)


# Jobs and races


def job_page() -> str:
    options = {name: spelling(parameter)[0] for name, parameter in _job_parameters().items()}
    rows = []
    for group, names in job_groups().items():
        for place, name in enumerate(names):
            field = job_fields()[name]
            default = "" if field.default is None else "{}" if name == "model_args" else _default(field)
            rows.append([
                "" if place else group.lower(), f"`{name}`", f"`{options[name]}`", default, field.description or "",
            ])
    race = [[f"`{name}`", field.description or ""] for name, field in Race.model_fields.items()]
    models = [[f"`{model.name}`", model.description] for model in MODELS]
    return "\n".join([
        NOTE,
        "# Job and race files\n",
        "A job is a YAML file with these fields, or the same as options of `train`, `race` and `plan`, or\n"
        "`velodrome.Job(...)` in Python. Options override the file. Unknown fields are refused.\n",
        table(["group", "field", "option", "default", "meaning"], rows),
        "## Models\n",
        table(["name", "what it is"], models),
        "`module:function` names [your own](../how-to/own-model.md).\n",
        "## Race files\n",
        table(["field", "meaning"], race),
        "```yaml\njob: {dataset: digits, epochs: 3}\nvary:\n  entry:\n    - {engine: torch, strategy: ddp}\n"
        "    - {engine: tensorflow, strategy: parameter-server, servers: 2}\n  workers: [1, 2]\nrepeat: 3\n```\n",
        "A race is every combination of the values that vary. On the command line: "
        "`--vary entry=torch/ddp,tensorflow/parameter-server:2 --vary workers=1,2 --repeat 3`.\n",
    ])


def _job_parameters() -> dict[str, inspect.Parameter]:
    train = dict(commands())["velodrome train"]
    parameters = inspect.signature(train, eval_str=True).parameters
    return {name: parameter for name, parameter in parameters.items() if name in job_fields()}


# Engines


def implementations_of(engine: Engine) -> str:
    rows = []
    for strategy in engine.strategies:
        about = strategy.implementation
        lists = (about.framework, about.own, about.stock, about.kept)
        rows.append([f"`{strategy.name}`", *("; ".join(parts) or "–" for parts in lists)])
    headings = ["strategy", "the framework's parts", "Velodrome's parts", "stock form", "which keeps of Velodrome's"]
    return table(headings, rows)


def engines_page() -> str:
    parts = [
        NOTE,
        "# Engines and strategies\n",
        "`velodrome engines` shows the same with what is missing on your machine.\n",
        "Consistency: `bsp`, every worker waits for all others at each step; `asp`, no worker waits for another;\n"
        "`periodic`, workers synchronize every few steps; `none`, there is only one.\n",
        matrix_section(),
    ]
    for engine in all_forms():
        install = next((need.install for need in engine.needs), "")
        rows = []
        for strategy in engine.strategies:
            needs = "; ".join([*(f"`{need.install}`" for need in strategy.needs), *filter(None, [strategy.hardware])])
            roles = "one process" if strategy.one_process else ", ".join(strategy.roles)
            kind = "synchronous" if strategy.synchronous else "asynchronous"
            options = ", ".join(f"`{flag(option.name)}`" for option in options_of(engine, strategy))
            rows.append([f"`{strategy.name}`", strategy.description, kind, str(strategy.consistency), roles, options,
                         needs])
        headings = ["strategy", "what it does", "kind", "consistency", "roles", "options of its own", "needs"]
        named = engine.name if engine.framework is None else f"{engine.name} --framework {engine.framework}"
        parts += [f"## `{named}`\n\n{engine.description}. Install: `{install}`.\n", table(headings, rows)]
        parts += ["Whose parts train, and those of `--implementation stock`:\n", implementations_of(engine)]
    return "\n".join(parts)


# Events, results, folders


def events_page() -> str:
    common = frozenset(EventBase.model_fields)
    headings = ["field", "type", "meaning"]
    parts = [
        NOTE,
        "# Events\n",
        "A training process reports what happens as events: JSON objects, one per line, kept in a run's\n"
        f"`events.jsonl`. On the process's standard output each line begins with `{PREFIX}`; whatever else a process\n"
        "prints is its log. A number that is not finite is null. The models are in `velodrome.events.models`; readers\n"
        f"ignore fields that they do not know. The schema has version {SCHEMA_VERSION}, which every process states in\n"
        "its `hello`; events of processes without a `hello` are from before versions were written.\n",
        "Every event has `kind`, one of the headings below, and:\n",
        table(headings, list(field_rows(EventBase))),
    ]
    for kind, model in EVENT_MODELS.items():
        rows = list(field_rows(model, leave_out=common | {"kind"}))
        parts += [f"## `{kind}`\n\n{inspect.cleandoc(model.__doc__ or '')}\n", table(headings, rows)]
    return "\n".join(parts)


def run_page() -> str:
    return "\n".join([
        NOTE,
        "# The run folder\n",
        "A run is a folder, `runs/NAME` by default (`--runs` chooses another place). A race is a folder of runs with\n"
        "`race.yaml`, the figure `race.png` and `calibration.jsonl`, the machine's speed between runs. An attempt\n"
        "that does not count is kept beside its run as `NAME.attempt-1`. Files are written under another name and\n"
        "then renamed, so none is ever incomplete; a finished run is never overwritten.\n",
        table(["file", "what it holds"], [[f"`{name}`", text] for name, text in FOLDER.items()]),
        "## `result.json`\n",
        "The same object is the last line of `velodrome train --json` and what `velodrome.train` returns. Its model\n"
        "is `velodrome.events.result.RunResult`; readers ignore fields that they do not know.\n",
        table(["field", "type", "meaning"], list(field_rows(RunResult))),
    ])


# Names


def names_page() -> str:
    letters = [[f"`{short}`", engine, f"`{strategy}`"] for (engine, strategy), short in abbreviations().items()]
    parts = [
        ["strategy and test group", "`MWM001`", "letters of the table below, and a number of at least three digits "
         "that distinguishes runs which would have the same name otherwise: repetitions count it up. With a test "
         "group, the number within the group has two digits: `MWM201` is run 1 of group 2 (`test_group` of a race "
         "file, `--test-group` of a study)"],
        ["data size", "`33000d`", "examples to train on; words of a text; 0 if not known before it is loaded"],
        ["label", "`artType`", "what is classified: the variant of a data set, or its name (`fashionMnist`)"],
        ["instances", "`2i`", "processes of the job: workers, servers and a chief"],
        ["batch", "`128b`", "as requested"],
        ["instance type", "`m5-4xlarge`", "type of the machine; `local-2c` is this machine with two cores"],
        ["epochs", "`10e`", "as requested"],
        ["time stamp", "`230713-102652`", "start of the race, local time: year, month, day, hour, minute, second"],
    ]
    return "\n".join([
        NOTE,
        "# Published names\n",
        "With `--naming published`, or `naming: published` in a race file, the runs of a race are named by the scheme\n"
        "of a published study: `MWM001-33000d-artType-2i-128b-m5-4xlarge-10e-230713-102652`.\n",
        table(["part", "example", "meaning"], parts),
        "A race that is resumed keeps the time stamp and the data sizes of its first start, also if images turned out\n"
        "to be unreadable since. `velodrome.job.names.parse` turns a name back into its parts.\n",
        table(["letters", "engine", "strategy"], letters),
    ])


def clusters_page() -> str:
    parts = [
        NOTE,
        "# Clusters\n",
        "`clusters.yaml` holds clusters by name, each with its `launcher` and that launcher's options. It is read\n"
        "from the current folder, then from `~/.config/velodrome` (`$XDG_CONFIG_HOME/velodrome`); with\n"
        "`VELODROME_CLUSTERS=FILE` "
        "only from that file. Unknown fields are refused. See [which launcher is for me](../how-to/clusters.md).\n",
    ]
    for launcher in launchers():
        parts.append(f"## {launcher.name}\n\n{launcher.description[0].upper()}{launcher.description[1:]}.\n")
        if not launcher.inline:
            continue
        parts.append(f"On the command line: `--on {launcher.name}:{launcher.inline}`.\n")
        rows = [[f"`{name}`", _default_of_option(field), field.description or ""]
                for name, field in launcher.options.model_fields.items()]
        parts.append(table(["field", "default", "meaning"], rows))
    return "\n".join(parts)


def _default_of_option(field: Any) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    return "" if default is None or default in ({}, []) else f"`{default}`"


def faults_page() -> str:
    return NOTE + matrix_page()


PAGES = {
    "commands.md": commands_page,
    "job.md": job_page,
    "clusters.md": clusters_page,
    "engines.md": engines_page,
    "events.md": events_page,
    "run-folder.md": run_page,
    "names.md": names_page,
    "faults.md": faults_page,
}


def stale() -> list[str]:
    """Return the names of generated pages that the code no longer matches; the folder may hold other pages."""
    made = {name: page() for name, page in PAGES.items()}
    files = {path.name: path.read_text(encoding="utf-8") for path in FOLDER_OF_PAGES.glob("*.md")}
    generated = {name: text for name, text in files.items() if name in made or text.startswith(NOTE)}
    return sorted(name for name in made.keys() | generated.keys() if made.get(name) != generated.get(name))


def main() -> None:
    if "--check" in sys.argv[1:]:
        if old := stale():
            raise SystemExit(f"out of date: {', '.join(old)}; run `make docs`")
        return
    FOLDER_OF_PAGES.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER_OF_PAGES / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Reads studies: those that come with Velodrome, by name, and the users' own files, with the line of every mistake."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from velodrome import files
from velodrome.catalog.models import MODEL_NAMES, is_own
from velodrome.catalog.registry import ENGINES, forms
from velodrome.clusters.yaml_files import parse_yaml
from velodrome.data import catalogue
from velodrome.data.own.functions import is_function
from velodrome.errors import BadRequest, VelodromeError, which_name
from velodrome.job.job import job_fields, make_job, reason_of
from velodrome.studies.format import (
    SCALES,
    Block,
    Check,
    Compare,
    Figure,
    Gap,
    Largest,
    ScaleName,
    Scales,
    Study,
    fits,
    fits_any,
)
from velodrome.studies.quantities import epoch_names, is_of_epochs, is_quantity, quantity_names

#: The place of a mistake in a file: names of fields and numbers of list items.
Place = tuple[int | str, ...]
#: Bytes of a study file, and mistakes that are listed.
_LARGEST, _MOST_MISTAKES = 4 << 20, 8
#: What a configuration cannot leave to defaults, because it names the configuration: whoever reads the file needs it.
_STATED = ("dataset", "model", "engine", "strategy", "batch_size", "epochs")
#: The same of a script.
_STATED_OF_SCRIPT = ("engine", "workers")
#: Where the scripts of studies that come with Velodrome lie.
_EXAMPLES = Path(__file__).parents[1] / "example_files"
#: What a study's configuration may hold beside the fields of a job.
_MARKS = ("added",)


@cache
def studies() -> dict[str, Study]:
    """Every study that comes with Velodrome by its name, in the order of their names."""
    shipped = [file for file in resources.files(__package__).iterdir() if file.name.endswith(".yaml")]
    listed = [_with_scripts(Study.model_validate(parse_yaml(file.read_text(encoding="utf-8"))), _EXAMPLES)
              for file in shipped]
    return {study.name: study for study in sorted(listed, key=lambda study: study.name)}


def _with_scripts(study: Study, folder: Path) -> Study:
    """The study with the paths of its scripts, which lie in a folder."""
    def resolved(fields: dict[str, Any]) -> dict[str, Any]:
        script = fields.get("script")
        return {**fields, "script": str(folder / script)} if isinstance(script, str) else fields

    def in_block(block: Block) -> Block:
        vary = {name: [resolved(value) if name == "entry" else value for value in values]
                for name, values in block.vary.items()}
        return block.model_copy(update={"job": resolved(block.job), "vary": vary})

    return study.model_copy(update={"races": [in_block(block) for block in study.races]})


def is_file(name: str) -> bool:
    """Whether the word stands for a study file and not for a study that comes with Velodrome."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def study_named(name: str) -> Study:
    """The study of a name, or of a file."""
    if is_file(name):
        return read_study(Path(name))
    known = studies()
    if name not in known:
        raise BadRequest(f"no study {name!r}: {which_name(name, known, 'velodrome study list')}")
    return known[name]


def scale_named(name: str) -> ScaleName:
    for known in SCALES:
        if name == known:
            return known
    raise BadRequest(f"--scale {name!r}: choose one of {', '.join(SCALES)}")


def read_study(path: Path) -> Study:
    """A study of the user's own; `BadRequest` names the file and the line of everything that is wrong with it."""
    try:
        text = files.read_text(path, _LARGEST)
    except FileNotFoundError:
        raise BadRequest(f"no file {str(path)!r}: `velodrome study new {path}` writes one to begin with") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    return parse_study(text, str(path), path.absolute().parent)


def parse_study(text: str, file: str, folder: Path = _EXAMPLES) -> Study:
    """A study as the text of a file; `BadRequest` as above. `folder` is where its scripts lie."""
    try:
        content = parse_yaml(text)
    except ValueError as error:
        raise BadRequest(f"{file} is not YAML: {error}") from None
    try:
        study = Study.model_validate(content)
    except ValidationError as error:
        # Of alternatives for one place, the first is the plainest.
        first: dict[Place, str] = {}
        for each in error.errors():
            first.setdefault(_own(each, content), _sentence(each))
        wrong = list(first.items())
    else:
        study = _with_scripts(study, folder)
        wrong = list(_mistakes(study))
        if not wrong:
            return study
    lines = [f"{file}, line {line_of(text, place)}: {_named(place)}{sentence}" for place, sentence in wrong]
    more = [f"and {len(lines) - _MOST_MISTAKES} more"] if len(lines) > _MOST_MISTAKES else []
    raise BadRequest("\n  ".join([*lines[:_MOST_MISTAKES], *more]))


def _own(error: Any, content: Any) -> Place:
    """The place without what pydantic puts between and behind fields: names of alternatives, such as `compare`."""
    kept: list[int | str] = []
    for number, part in enumerate(error["loc"]):
        try:
            content = content[part]
        except (KeyError, IndexError, TypeError):
            if number < len(error["loc"]) - 1 or error["type"] != "missing":
                continue
        kept.append(part)
    return tuple(kept)


def _sentence(error: Any) -> str:
    if error["type"] == "missing":
        return "this field is missing"
    if error["type"] == "extra_forbidden":
        return "there is no such field"
    if error["type"] == "union_tag_invalid":
        known = str(error["ctx"]["expected_tags"]).replace("'", "")
        return f"kind {error['ctx']['tag']!r}: must be one of {known}"
    return reason_of(error).split(" or instance of ")[0].replace("a valid number, unable", "a number, unable")


def _named(place: Place) -> str:
    return f"{'.'.join(map(str, place))}: " if place else ""


def line_of(text: str, place: Place) -> int:
    """The line of a YAML text at which a place begins, from 1; of a field that is missing, the line of its owner."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if pair is None:
                break
            key, node = pair
            line = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _mistakes(study: Study) -> Iterator[tuple[Place, str]]:
    """What is wrong with a study whose fields have the right types: names that nothing has, rules that fit nothing."""
    combinations = study.combinations()
    for number, block in enumerate(study.races):
        yield from _mistakes_of_names(number, block)
        for fields in block.combinations():
            try:
                make_job({name: value for name, value in fields.items() if name not in _MARKS})
            except VelodromeError as error:
                yield ("races", number), str(error)
                break
            stated = _STATED_OF_SCRIPT if fields.get("script") else _STATED
            if lacking := [name for name in stated if name not in fields]:
                yield ("races", number), f"a study states every {', '.join(stated)}: {', '.join(lacking)} is missing"
                break
            if fields.get("script") and not Path(fields["script"]).is_file():
                yield ("races", number), f"script: no file {fields['script']!r}"
                break
    for scale, about in study.scales.items():
        for part in ("job", "most", "only"):
            for name in getattr(about, part):
                if name not in job_fields():
                    yield ("scales", scale, part, name), f"no field {name!r}: {which_name(name, job_fields())}"
    for number, setting in enumerate(study.settings):
        for name in setting.fields:
            if name not in job_fields():
                yield ("settings", number, "fields"), f"no field {name!r}: {which_name(name, job_fields())}"
        if not any(fits(fields, setting.of) for fields in combinations):
            yield ("settings", number, "of"), "no configuration of the study has these values"
    for number, figure in enumerate(study.figures):
        yield from _mistakes_of_figure(("figures", number), figure, combinations)
    for number, curve in enumerate(study.curves):
        for figure in curve.figures():
            yield from _mistakes_of_figure(("curves", number), figure, combinations)
    for number, asked in enumerate(study.batches):
        if not any(fits_any(fields, asked.where) for fields in combinations):
            yield ("batches", number, "where"), "no configuration of the study has these values"
    for number, claim in enumerate(study.claims):
        for place, check in enumerate(claim.checks):
            for name, sentence in _mistakes_of_check(check, combinations):
                yield ("claims", number, "checks", place, name), sentence


def _mistakes_of_names(number: int, block: Block) -> Iterator[tuple[Place, str]]:
    """Engines, strategies, models and data sets that there are none of, where they are written."""
    written: list[tuple[Place, Mapping[str, Any]]] = [(("job",), block.job)]
    usable = ENGINES.usable()
    for name, values in block.vary.items():
        written += [(("vary", name, place), value if name == "entry" else {name: value})
                    for place, value in enumerate(values)]
    for where, fields in written:
        engine = fields.get("engine", block.job.get("engine"))
        strategies = [each.name for form in forms(engine) for each in form.strategies] if engine in usable else []
        known: dict[str, Collection[str]] = {"engine": ENGINES.names(), "strategy": strategies, "model": MODEL_NAMES,
                                             "dataset": catalogue.names()}
        for field, names in known.items():
            value = fields.get(field)
            if isinstance(value, str) and names and value not in names and not _is_own(field, value):
                yield ("races", number, *where, field), f"no {field} {value!r}: {which_name(value, names)}"


def _is_own(field: str, value: str) -> bool:
    """Whether a model or a data set is one of the user's own, or a variant of a data set that comes with Velodrome."""
    before, colon, _ = value.partition(":")
    known = (*catalogue.names(), *catalogue.schemes())
    return (field == "model" and is_own(value)) or (
        field == "dataset" and bool(colon) and (before in known or is_function(value)))


def _mistakes_of_figure(
    place: Place, figure: Figure, combinations: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Place, str]]:
    count = sum(fits(fields, figure.of) for fields in combinations)
    if count != 1:
        which = "no configuration" if not count else f"{count} configurations"
        yield (*place, "of"), f"{which} of the study {'have' if count > 1 else 'has'} these values, and one must"
    own = _have_own_metrics(combinations)
    for name in figure.values:
        if not is_quantity(name, own_metrics=own):
            yield (*place, "values", name), f"no quantity {name!r}: {which_name(name, quantity_names())}"
    for name in figure.epochs:
        if not is_of_epochs(name, own_metrics=own):
            yield (*place, "epochs", name), f"no metric {name!r} of an epoch: {which_name(name, epoch_names())}"


def _have_own_metrics(combinations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a script or a task of the user's own may report metrics of any name."""
    return any(fields.get("script") or ":" in str(fields.get("task")) for fields in combinations)


def _mistakes_of_check(check: Check, combinations: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    among = [fields for fields in combinations if fits_any(fields, check.where)]
    if not among:
        yield "where", "no configuration of the study has these values"
        return
    if isinstance(check, Compare | Largest | Gap) and not any(fits(fields, check.of) for fields in among):
        yield "of", "no configuration of the study has these values"
    if isinstance(check, Gap) and not any(fits_any(fields, check.against) for fields in combinations):
        yield "against", "no configuration of the study has these values"
    if isinstance(check, Compare | Gap) and not any(fits(fields, check.than) for fields in combinations):
        yield "than", "no configuration of the study has these values"
    if isinstance(check, Scales) and not any(fields.get("workers") == 1 for fields in among):
        yield "where", "speedup is over one worker, and no configuration among these has one"
    measure = getattr(check, "measure", None)
    if measure is not None and not is_quantity(measure, own_metrics=_have_own_metrics(combinations)):
        yield "measure", f"no quantity {measure!r}: {which_name(measure, quantity_names())}"

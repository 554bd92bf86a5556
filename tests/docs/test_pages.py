"""The pages hold together: links lead somewhere, the reference is what the code says, YAML is YAML."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from samples import ROOT, USER_PAGES, anchors, blocks, commands, links, section_before

from velodrome.catalog import registry
from velodrome.cli.main import COMMANDS, loaded
from velodrome.job.job import Job
from velodrome.job.race import parse_vary

EXAMPLES = ROOT / "src" / "velodrome" / "example_files"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link} is not there"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_says_its_language_and_yaml_can_be_read(page: Path) -> None:
    for block in blocks(page):
        assert block.language, f"line {block.line}: a block without language"
        if block.language == "yaml":
            yaml.safe_load(block.text)


@pytest.mark.parametrize("page", USER_PAGES, ids=[page.stem for page in USER_PAGES])
def test_every_command_on_a_page_exists_with_its_options(page: Path) -> None:
    for block in blocks(page):
        assert block.language != "sh" or "velodrome " not in block.text.replace("pip install", ""), (
            f"line {block.line}: commands of velodrome are in bash blocks, which run or say why not"
        )
        for words in commands(block) if block.language == "bash" else []:
            known, rest = _options_of(words)
            # What a script is given may look like an option.
            own = [word for before, word in itertools.pairwise(["", *rest]) if before != "--script-args"]
            options = [word.partition("=")[0] for word in own if word.startswith("--")]
            assert set(options) <= known, f"line {block.line}: {set(options) - known} of velodrome {' '.join(words)}"


def _options_of(words: list[str]) -> tuple[set[str], list[str]]:
    """The options of the command that these words call, and the words after its name."""
    assert words[0] in COMMANDS, f"velodrome {words[0]}"
    command, rest = typer.main.get_command(loaded(words[0])), words[1:]
    below = getattr(command, "commands", None)
    if below and not (command.invoke_without_command and (not rest or rest[0].startswith("-"))):
        assert rest[0] in below, f"velodrome {' '.join(words)}"
        command, rest = below[rest[0]], rest[1:]
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}, rest


@pytest.mark.parametrize("page", USER_PAGES, ids=[page.stem for page in USER_PAGES])
def test_a_file_that_a_page_shows_is_named_in_the_text_before_it(page: Path) -> None:
    for block in blocks(page):
        if block.file is not None:
            assert f"`{block.file}`" in section_before(page, block), f"line {block.line}: {block.file}"


@pytest.mark.parametrize("page", USER_PAGES[:2], ids=["readme", "tutorial"])
def test_what_a_page_installs_is_enough_for_what_it_trains(page: Path) -> None:
    """README and tutorial begin with an install line: no strategy on the page needs an extra that is not in it."""
    extras = set(re.search(r'pip install "velodrome\[([\w,]+)\]"', page.read_text(encoding="utf-8"))[1].split(","))
    trained = {pair for block in blocks(page) if block.language == "bash" for words in commands(block)
               for pair in _trained(words)}
    assert trained
    for engine, strategy in trained:
        job = Job(engine=engine, strategy=strategy)
        needs = [*registry.engine_of(job).needs, *registry.strategy_of(job).needs]
        needed = {extra for need in needs for extra in re.search(r"\[(.+)\]", need.install)[1].split(",")}
        assert needed <= extras, f"{engine}/{strategy} needs {needed - extras}"


def _trained(words: list[str]) -> set[tuple[str, str]]:
    """Engine and strategy of every job of a command."""
    option = dict(itertools.pairwise(words))
    job = {name: option[f"--{name}"] for name in ("engine", "strategy") if f"--{name}" in option}
    entries = parse_vary([word for before, word in itertools.pairwise(words) if before == "--vary"]).get("entry", [])
    if words[1:] and words[1].startswith("examples/"):
        file = yaml.safe_load((EXAMPLES / Path(words[1]).name).read_text(encoding="utf-8"))
        job = {**file.get("job", file), **job}
        entries = entries or file.get("vary", {}).get("entry", [])
    jobs = [job | entry for entry in entries or [{}]]
    return {(fields["engine"], fields["strategy"]) for fields in jobs if "strategy" in fields}


def test_no_page_is_out_of_reach_of_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        names = [link.partition("#")[0] for link in links(page)]
        waiting += [(page.parent / name).resolve() for name in names if name]
    assert set(PAGES) - reached == set()


@pytest.mark.integration
def test_the_generated_reference_is_what_the_code_says() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr

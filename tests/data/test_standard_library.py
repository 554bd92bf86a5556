"""`os:system` is neither data nor a model: refused before anything is imported or called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from velodrome.data import catalogue
from velodrome.errors import BadRequest
from velodrome.models.own import builder_of

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    """A module of the user's that imports functions of Python, and one that is named like one of Python's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_odd_data.py").write_text(
        "import os\nfrom os import abort\nfrom functools import partial\n\n\n"
        "def needs(path):\n    raise AssertionError\n\n\ndef build(input_shape, classes):\n    return classes\n\n\n"
        "made = partial(build, (1,), 2)\n"
    )
    Path("antigravity.py").write_text("def build(input_shape, classes):\n    return classes\n")
    yield "my_odd_data"
    for name in ("my_odd_data", "antigravity"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["os:system", "os.path:exists", "subprocess:run", "builtins:print", "sys:exit"])
def test_a_function_of_python_is_refused_as_data_and_as_a_model(velodrome, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for option in ("--dataset", "--model"):
        for command in ("train", "race"):
            done = velodrome(command, option, name)
            assert done.code == 2
            assert f"{option} {name!r}: " in done.err
            assert "is a module of Python's standard library; name a function of your own" in done.err
            assert not Path("runs").exists()


def test_a_function_that_the_users_module_only_imported_is_refused_too(module):
    for name in ("abort", "os.system"):
        with pytest.raises(BadRequest, match="Python's standard library"):
            catalogue.load(f"{module}:{name}", seed=1, validation=0.1)
        with pytest.raises(BadRequest, match="Python's standard library"):
            builder_of(f"{module}:{name}")


def test_a_function_that_needs_arguments_is_not_called_for_data(module):
    with pytest.raises(BadRequest, match=r"'needs' is called without arguments: missing a required argument: 'path'"):
        catalogue.load(f"{module}:needs", seed=1, validation=0.1)


@pytest.mark.parametrize("name", ["my_odd_data:build", "my_odd_data:made", "antigravity:build"])
def test_what_the_user_made_of_it_or_named_like_it_is_theirs(module, name):
    assert callable(builder_of(name))

"""A user's own model: a mistake in it is told as what it is, and only a wrong shape as a wrong shape."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from velodrome.errors import BadRequest
from velodrome.models.own import builder_of, fits_data, reason_of, users_traceback

pytestmark = pytest.mark.unit

MODULE = """
import json

def build(input_shape, classes, width=3):
    return width

def nothing():
    return None

def missing_attribute(input_shape, classes):
    return json.nonsense
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_nets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "users_nets", raising=False)
    return "users_nets"


def called(name: str, **arguments: object) -> object:
    # The engines call the user's function from inside the package; this stands at the same place.
    code = compile("result = builder(input_shape=(8, 8, 1), classes=10, **arguments)", _inside_package(), "exec")
    scope: dict[str, object] = {"builder": builder_of(name), "arguments": arguments}
    with fits_data(name, (8, 8, 1), building=True):
        exec(code, scope)
    return scope["result"]


def _inside_package() -> str:
    import velodrome.models.own

    return str(Path(velodrome.models.own.__file__).with_name("engine.py"))


def test_arguments_reach_the_function(module: str) -> None:
    assert called(f"{module}:build", width=7) == 7


@pytest.mark.parametrize(("function", "arguments"), [("nothing", {}), ("build", {"wdth": 7})])
def test_a_function_that_cannot_be_called_so_is_refused_with_how_it_is_called(
    module: str, function: str, arguments: dict[str, object]
) -> None:
    with pytest.raises(BadRequest, match=r"unexpected keyword argument .*called with input_shape, classes"):
        called(f"{module}:{function}", **arguments)


def test_a_missing_attribute_is_the_users_mistake_and_not_a_wrong_shape(module: str) -> None:
    with pytest.raises(AttributeError) as raised:
        called(f"{module}:missing_attribute")
    assert "json.nonsense" in (users_traceback(raised.value) or "")


@pytest.mark.parametrize(("message", "reason"), [
    ("Exception encountered when calling Net.call().\n\n\x1b[1m{{node a}} sizes differ [Op:MatMul] name: \x1b[0m",
     "sizes differ"),
    (f"A tensor is no bool. You can {'try something else, or ' * 20}", "A tensor is no bool"),
    ("It is odd. It must be even.", "It is odd. It must be even"),
], ids=["Keras", "advice", "short"])
def test_the_reason_of_a_framework_is_one_line_without_titles_names_of_nodes_and_long_advice(
    message: str, reason: str
) -> None:
    assert reason_of(ValueError(message)) == reason

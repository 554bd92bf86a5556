"""How a training process says why it ends: one sentence, whose fault it is, and the user's own lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velodrome.errors import BadRequest, PeerLost, PortTaken, RunFailed, headline, raised
from velodrome.events import PREFIX
from velodrome.models.own import graph_traceback, quoted_traceback
from velodrome.training.__main__ import report
from velodrome.training.context import Emitter

pytestmark = pytest.mark.unit

GRAPH = f'''Graph execution error:

Detected at node PyFunc defined at (most recent call last):
  File "{os.__file__}", line 5, in call

ValueError: too small
Traceback (most recent call last):

  File "{os.__file__}", line 269, in __call__
    ret = func(*args)

  File "/home/me/nets.py", line 28, in spring
    raise ValueError("too small")

ValueError: too small


\t [[{{{{node while/PyFunc}}}}]] [Op:__inference_12]
'''


def reported(error: BaseException) -> dict[str, Any]:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream:
        report(error, Emitter(writer, "worker", 1))
        os.close(writer)
        found: dict[str, Any] = json.loads(stream.read().decode().removeprefix(PREFIX))
    return found


@pytest.mark.parametrize(
    ("error", "cause", "message"),
    [
        (BadRequest("no such thing"), "request", "no such thing"),
        (PeerLost("lost worker 1"), "peer", "lost worker 1"),
        (PortTaken("port 5 is taken"), "port", "port 5 is taken"),
        (RunFailed("the loss became nan"), "engine", "the loss became nan"),
        (ValueError("odd"), "engine", "ValueError: odd"),
        (ValueError(), "engine", "ValueError"),
        (RuntimeError("first line\nsecond line"), "engine", "RuntimeError: first line"),
        (OSError(28, "No space left on device", "/runs/a"), "engine",
         "No space left on device: /runs/a; free some space there, then resume"),
        (OSError(13, "Permission denied", "/runs/a"), "engine", "Permission denied: /runs/a"),
        (OSError("cannot write"), "engine", "OSError: cannot write"),
        (SystemExit(5), "user", "the model's code called sys.exit(5)"),
        (KeyboardInterrupt(), "engine", "interrupted by Ctrl-C"),
        (RuntimeError(GRAPH), "user", "RuntimeError: ValueError: too small"),
    ],
)
def test_an_error_is_one_sentence_and_has_a_cause(error: BaseException, cause: str, message: str) -> None:
    event = reported(error)
    assert (event["cause"], event["message"]) == (cause, message)


def test_the_headline_of_a_lost_collective_names_who_is_gone() -> None:
    text = """Graph execution error:

Detected at node while/CollectiveReduceV2 defined at (most recent call last):
  File "x.py", line 3, in train

Collective ops is aborted by: Error from /job:worker/task:1: The following tasks stopped sending heartbeats:
/job:worker/replica:0/task:1
"""
    assert headline(text).startswith("Collective ops is aborted by: Error from /job:worker/task:1")
    assert headline("one line:") == "one line:"
    assert headline("") == ""


PIPELINE = """{{function_node __wrapped__IteratorGetNext_device_/job:worker/replica:0/task:0/device:CPU:0}} Error in \
user-defined function passed to MapDataset:1 transformation with iterator: Root::Map: OSError: photo 50 is gone
Traceback (most recent call last):

  File "x.py", line 3, in look
"""


def test_what_python_raised_in_a_pipeline_of_tensorflow_is_one_line() -> None:
    wrapping = type("InvalidArgumentError", (Exception,), {"__module__": "tensorflow.python.framework.errors_impl"})
    assert raised(wrapping(PIPELINE)) == "OSError: photo 50 is gone"
    assert raised(wrapping("{{node Cast}} no such type")) == "InvalidArgumentError: no such type"
    assert raised(ValueError("two\nlines")) == "ValueError: two"
    assert raised(KeyError()) == "KeyError"


@pytest.mark.parametrize(("text", "line"), [
    ("Exception encountered when calling Net.call().\n\n\x1b[1mnot yet\x1b[0m\n\nArguments received by Net.call():",
     "not yet"),
    ("2 root error(s) found.\n  (0) INVALID_ARGUMENT:  too hot: [3]\n\t [[{{node a}}]]\n  (1) CANCELLED: b",
     "too hot: [3]"),
    ("Graph execution error:\n\nDetected at node a defined at (most recent call last):\n<stack traces unavailable>\nno",
     "no"),
])
def test_titles_of_frameworks_are_no_headlines(text: str, line: str) -> None:
    assert headline(text) == line


def test_an_operation_that_fails_in_a_graph_is_shown_by_the_users_lines_that_made_it(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("def call(x):\n    check(x, 2.0)\n")
    text = f'''Graph execution error:

Detected at node assert_less/Assert defined at (most recent call last):
  File "{os.__file__}", line 5, in run

  File "{tmp_path}/nets.py", line 2, in call

  File "{os.__file__}", line 9, in check

Detected at node assert_less/Assert defined at (most recent call last):
  File "{tmp_path}/nets.py", line 2, in call

assertion failed: [too hot]
'''
    event = reported(RuntimeError(text))
    assert (event["cause"], event["message"]) == ("user", "RuntimeError: assertion failed: [too hot]")
    assert event["traceback"] == (
        f'Traceback (most recent call last):\n  File "{tmp_path}/nets.py", line 2, in call\n    check(x, 2.0)\n'
        "assertion failed: [too hot]"
    )
    assert graph_traceback(text.replace(f"{tmp_path}/nets.py", os.__file__)) is None


def users_function(folder: Path, body: str) -> Callable[[], None]:
    path = folder / "nets.py"
    path.write_text(f"def build():\n    {body}\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    built: Callable[[], None] = names["build"]
    return built


@pytest.mark.parametrize(("body", "message"), [
    ("raise ValueError('odd')", "ValueError: odd"),
    ("open('/no/such/file')", "No such file or directory: /no/such/file"),
])
def test_what_the_users_code_raises_is_the_users_and_begins_with_its_own_lines(
    tmp_path: Path, body: str, message: str
) -> None:
    build = users_function(tmp_path, body)
    with pytest.raises((ValueError, OSError)) as raised:
        build()
    assert raised.value.__traceback__ is not None
    event = reported(raised.value.with_traceback(raised.value.__traceback__.tb_next))
    assert (event["cause"], event["message"]) == ("user", message)
    assert f'File "{tmp_path}/nets.py", line 2, in build' in event["traceback"]


def test_a_graph_quotes_the_users_lines_and_they_are_found() -> None:
    assert quoted_traceback(GRAPH) == (
        "Traceback (most recent call last):\n"
        '  File "/home/me/nets.py", line 28, in spring\n    raise ValueError("too small")\n'
        "ValueError: too small"
    )
    assert quoted_traceback(GRAPH.replace("/home/me/nets.py", os.__file__)) is None
    assert quoted_traceback("no traceback here") is None

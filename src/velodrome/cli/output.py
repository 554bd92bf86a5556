"""Everything that the command prints goes through here, so that no text from outside acts on the terminal.

Escape sequences in class names, texts, file names and messages are shown, not obeyed, and a huge word is shortened.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from velodrome.printable import LONGEST_LINE, printable


def say(text: object = "", *, longest: int | None = LONGEST_LINE, flush: bool = False) -> None:
    """Print text to stdout; a line longer than `longest` is shortened."""
    print(printable(text, longest), flush=flush)


def complain(text: object) -> None:
    """Print a problem to stderr."""
    print(printable(f"velodrome: {text}"), file=sys.stderr)


def say_on_stderr(text: object) -> None:
    """Print what belongs to a problem to stderr, such as a traceback."""
    print(printable(text), file=sys.stderr, flush=True)


def say_json(value: Any) -> None:
    """Print an object as one line of ASCII."""
    print(json.dumps(value), flush=True)

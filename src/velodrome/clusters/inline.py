"""The options that may stand behind a launcher's name and a colon: `NAME=VALUE,NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Collection

from velodrome.errors import BadRequest


def inline_fields(text: str, launcher: str, known: Collection[str], example: str) -> dict[str, str]:
    """The values by name, each as a text; `BadRequest` for names that are unknown, given twice or without a value."""
    fields: dict[str, str] = {}
    for word in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or name not in known:
            raise BadRequest(f"--on {launcher}: {word!r} is none of {', '.join(known)}; write {example}")
        if name in fields:
            raise BadRequest(f"--on {launcher}: {name!r} is given twice; choose one value")
        if not value:
            raise BadRequest(f"--on {launcher}: {word!r} has no value; write {example}, or leave {name!r} out")
        fields[name] = value
    return fields

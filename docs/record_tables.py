"""Tables of the fields of a record, from its model: name, type and description."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from velodrome.events.fields import NOT_NULL, Record

_NAMES = {str: "text", bool: "boolean", int: "integer", float: "number", list: "list", dict: "object", NoneType: "null"}


def field_rows(model: type[Record], *, leave_out: frozenset[str] = frozenset(), above: str = "") -> Iterator[list[str]]:
    """Yield a row for every field, those of nested records below the field that holds them.

    A record whose fields have no description of their own is described by the field that holds it.
    """
    for name, field in model.model_fields.items():
        if name in leave_out:
            continue
        if field.description is None:
            raise SystemExit(f"{model.__name__}.{name} has no description")
        path = f"{above}{field.alias or name}"
        optional = "" if field.is_required() else ", optional"
        kind = _type_name(field.annotation)
        if NOT_NULL in field.metadata:
            kind = kind.removesuffix(" or null")
        yield [f"`{path}`", kind + optional, field.description]
        nested = _record_in(field.annotation)
        if nested is not None and any(below.description for below in nested.model_fields.values()):
            many = "[]" if _is_list(field.annotation) else ""
            yield from field_rows(nested, above=f"{path}{many}.")


def _parts(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself, without what Annotated adds."""
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(part for member in get_args(annotation) for part in _parts(member))
    return (annotation,)


def _type_name(annotation: Any) -> str:
    names = []
    for part in _parts(annotation):
        plain = get_origin(part) or part
        if plain is Literal:
            plain = str
        names.append("object" if isinstance(plain, type) and issubclass(plain, Record) else _NAMES[plain])
    return " or ".join(names)


def _is_list(annotation: Any) -> bool:
    return any(get_origin(part) is list for part in _parts(annotation))


def _record_in(annotation: Any) -> type[Record] | None:
    for part in _parts(annotation):
        inner = get_args(part)[0] if get_origin(part) is list else part
        if isinstance(inner, type) and issubclass(inner, Record):
            return inner
    return None

"""The file in the body of a request: a form with one field `file`, or the picture itself."""

from __future__ import annotations

import re

from velodrome.serving.model import BadInput

#: Bytes that a form needs around the file.
FORM_BYTES = 16 << 10
_MOST_PARTS = 16
_BOUNDARY = re.compile(r"boundary=(?:\"([^\"]{1,70})\"|([^\s\";,]{1,70}))", re.IGNORECASE)
_NAME = re.compile(rb"[;\s]name=(?:\"([^\"]*)\"|([^\s;\"]+))", re.IGNORECASE)


def file_of(content_type: str, body: bytes) -> bytes:
    """The one file that was sent, or `BadInput`."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind.startswith("image/") or kind == "application/octet-stream":
        return body
    if kind != "multipart/form-data":
        raise BadInput("send a form with a field 'file' (multipart/form-data), a picture, or JSON", 415)
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise BadInput("the form has no boundary between its fields", 400)
    edge = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    parts = (b"\r\n" + body).split(b"\r\n" + edge, _MOST_PARTS + 1)
    if len(parts) > _MOST_PARTS or len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise BadInput("the form is cut off, or has too many fields", 400)
    files = [content for name, content in map(_field, parts[1:-1]) if name == b"file"]
    if len(files) != 1:
        raise BadInput(f"the form has {len(files)} fields 'file', and one is needed", 422)
    return files[0]


def _field(part: bytes) -> tuple[bytes, bytes]:
    head, _, content = part.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-disposition:"):
            found = _NAME.search(line)
            return (found[1] if found[1] is not None else found[2]) if found else b"", content
    return b"", content

"""The file in a form, whatever the form looks like."""

from __future__ import annotations

import pytest

from velodrome.serving.inputs import file_of
from velodrome.serving.model import BadInput

pytestmark = pytest.mark.unit
FORM = "multipart/form-data; boundary=edge"


def part(content: bytes, name: str = "file", edge: str = "edge") -> bytes:
    said = f'Content-Disposition: form-data; name="{name}"; filename="x.png"'
    return f"--{edge}\r\n{said}\r\nContent-Type: image/png\r\n\r\n".encode() + content + b"\r\n"


END = b"--edge--\r\n"


@pytest.mark.parametrize("content", [b"", b"abc", b"\r\n\r\n--edg\r\n", b"--other-", bytes(range(256))])
def test_the_file_comes_out_as_it_was_sent(content: bytes) -> None:
    assert file_of(FORM, part(content) + END) == content
    assert file_of('multipart/form-data; boundary="edge"', part(b"x", "other") + part(content) + END) == content


def test_a_picture_may_be_the_whole_body() -> None:
    assert file_of("image/png", b"abc") == b"abc"


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("", b"abc", 415),
        ("text/plain", b"abc", 415),
        ("multipart/form-data", part(b"x") + END, 400),
        (f"multipart/form-data; boundary={'e' * 80}", part(b"x") + END, 400),
        (FORM, b"", 400),
        (FORM, part(b"x"), 400),
        (FORM, part(b"x", edge="other") + END, 400),
        (FORM, part(b"x", "photo") + END, 422),
        (FORM, part(b"x") + part(b"y") + END, 422),
        (FORM, part(b"x") * 40 + END, 400),
        (FORM, b"--edge\r\nno header\r\n" + END, 422),
    ],
)
def test_what_is_no_form_with_one_file_is_refused(kind: str, body: bytes, status: int) -> None:
    with pytest.raises(BadInput) as refusal:
        file_of(kind, body)
    assert refusal.value.status == status

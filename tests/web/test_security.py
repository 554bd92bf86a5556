"""Every request is refused that a page of the server would not make, whatever it asks for."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from velodrome.errors import BadRequest
from velodrome.web.app import make_app
from velodrome.web.security import COOKIE, CSRF_HEADER, HEADERS, MOST_BYTES, Security, host_name
from velodrome.web.server import address_of, check_host, listen
from velodrome.web.ui import ui_app

HOME = "http://127.0.0.1:8200"


def client(runs: Path, security: Security | None = None) -> TestClient:
    return TestClient(ui_app(runs, security or Security()), base_url=HOME, raise_server_exceptions=False,
                      follow_redirects=False)


HOSTS = [
    ("127.0.0.1:8200", 200), ("127.0.0.1", 200), ("localhost:9000", 200), ("LOCALHOST", 200), ("[::1]:8200", 200),
    ("evil.example", 421), ("evil.example:8200", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example", 421),
    ("192.168.1.20:8200", 421), ("0.0.0.0:8200", 421), ("127.0.0.1:8200@evil.example", 421), ("[::1", 421),
    ("127.0.0.1:x", 421), ("", 421), ("[::1]evil.example", 421), ("127.0.0.1:8200, evil.example", 421),
]


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_only_the_own_names_are_answered_so_that_no_other_name_can_be_rebound_to_this_machine(
    tmp_path: Path, host: str, status: int
) -> None:
    assert client(tmp_path).get("/", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(("origin", "status"), [
    (HOME, 404), ("http://evil.example", 403), ("null", 403), ("http://127.0.0.1:9999", 403),
    ("http://127.0.0.1:8200.evil.example", 403), ("http://localhost:8200", 403), ("", 403),
])
def test_only_pages_of_the_same_origin_may_post(tmp_path: Path, origin: str, status: int) -> None:
    security = Security()
    answer = client(tmp_path, security).post(
        "/api/nothing", headers={"Origin": origin, CSRF_HEADER: security.csrf}
    )
    assert answer.status_code == status


@pytest.mark.parametrize("headers", [{}, {CSRF_HEADER: ""}, {CSRF_HEADER: "x" * 32}, {CSRF_HEADER: "ä"}])
def test_a_post_without_the_token_of_the_page_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    given = {name.encode(): value.encode() for name, value in headers.items()}
    answer = client(tmp_path).post("/api/races", headers=given)
    assert answer.status_code == 403
    assert "reload the page" in answer.text


@pytest.mark.parametrize(("site", "mode", "destination", "status"), [
    ("same-origin", "cors", "empty", 200), ("none", "navigate", "document", 200),
    ("cross-site", "navigate", "document", 200),
    ("cross-site", "no-cors", "image", 403), ("same-site", "cors", "empty", 403),
    ("cross-site", "navigate", "iframe", 403),
])
def test_other_sites_may_link_to_a_page_and_embed_nothing(
    tmp_path: Path, site: str, mode: str, destination: str, status: int
) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": destination}
    assert client(tmp_path).get("/", headers=headers).status_code == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_do_not_exist(tmp_path: Path, method: str) -> None:
    assert client(tmp_path).request(method, "/").status_code == 405


def test_read_only_refuses_every_post(tmp_path: Path) -> None:
    security = Security(read_only=True)
    answer = client(tmp_path, security).post("/api/races", headers={CSRF_HEADER: security.csrf})
    assert answer.status_code == 403
    assert "--read-only" in answer.text


def test_every_answer_has_the_policy_even_errors(tmp_path: Path) -> None:
    pages = client(tmp_path)
    answers = [pages.get("/"), pages.get("/nothing"), pages.get("/", headers={"Host": "evil.example"}),
               pages.post("/"), pages.get("/static/style.css"), pages.get("/api/races")]
    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("path", [
    "/static/../app.py", "/static/..%2fapp.py", "/static/vendor/../../app.py", "/static/%2e%2e/app.py",
    "/static/.hidden.js",
    "/static/", "/static//etc/passwd", "/static/style.css%00.js", "/static/" + "a" * 3000 + ".js", "/static/vendor",
    "/static/vendor/SHA256SUMS", "/static/..\\app.py",
])
def test_static_files_are_only_those_of_the_package(tmp_path: Path, path: str) -> None:
    assert client(tmp_path).get(path).status_code == 404


def test_a_large_body_is_refused_before_it_is_read(tmp_path: Path) -> None:
    security = Security()
    headers = {CSRF_HEADER: security.csrf, "Content-Length": str(MOST_BYTES + 1)}
    assert client(tmp_path, security).post("/api/races", headers=headers).status_code == 413


def test_an_address_for_other_machines_needs_consent_and_a_token(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="--allow-remote"):
        check_host("0.0.0.0", allow_remote=False)
    security = Security.for_address(check_host("0.0.0.0", allow_remote=True))
    assert security.token is not None
    pages = client(tmp_path, security)
    assert pages.get("/").status_code == 401
    assert pages.get("/?token=wrong").status_code == 401
    assert pages.get("/static/style.css").status_code == 401
    assert pages.get("/", headers={"Authorization": f"Bearer {security.token}"}).status_code == 200
    entered = pages.get(f"/?token={security.token}&a=b")
    assert entered.status_code == 303
    assert entered.headers["Location"] == "/?a=b"
    assert "HttpOnly" in entered.headers["Set-Cookie"]
    assert "SameSite=strict" in entered.headers["Set-Cookie"]
    pages.cookies.set(f"{COOKIE}_8200", security.token)
    assert pages.get("/").status_code == 200
    assert pages.get("/", headers={"Host": "10.1.2.3:8200"}).status_code == 200
    assert pages.get("/", headers={"Host": "evil.example"}).status_code == 421


def test_two_servers_on_one_host_do_not_log_each_other_out(tmp_path: Path) -> None:
    """A browser keeps one set of cookies for a host, whatever the port."""
    jar: dict[str, str] = {}
    for port in (8200, 8300):
        security = Security.for_address("0.0.0.0")
        address = f"http://10.1.2.3:{port}"
        pages = TestClient(ui_app(tmp_path, security), base_url=address, follow_redirects=False)
        entered = pages.get(f"/?token={security.token}")
        name, _, value = entered.headers["Set-Cookie"].partition(";")[0].partition("=")
        assert name not in jar
        jar[name] = value
        pages.cookies.clear()
        cookies = "; ".join(f"{one}={value}" for one, value in jar.items())
        assert pages.get("/", headers={"Cookie": cookies}).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.2", "127.1.2.3", "::1", "localhost", "LOCALHOST"])
def test_the_printed_address_answers_on_every_loopback_address(tmp_path: Path, host: str) -> None:
    security = Security.for_address(check_host(host, allow_remote=False))
    assert security.token is None
    with listen(host, 0) as listener:
        address = address_of(listener, security)
    pages = client(tmp_path, security)
    assert pages.get("/", headers={"Host": address.removeprefix("http://")}).status_code == 200
    assert pages.get("/", headers={"Host": "evil.example"}).status_code == 421
    assert pages.get("/", headers={"Host": "127.9.9.9"}).status_code == 421


def test_a_token_in_the_address_never_leads_to_another_site(tmp_path: Path) -> None:
    security = Security.for_address("0.0.0.0")
    answer = client(tmp_path, security).get(f"//evil.example/?token={security.token}")
    assert not answer.headers.get("Location", "/").startswith(("//", "http"))


def test_loopback_needs_no_token_and_its_address_is_printed() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener, Security.for_address("127.0.0.1")) == f"http://127.0.0.1:{port}"
        with pytest.raises(BadRequest, match=f"--port {port}"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(("header", "name"), [
    ("a:1", "a"), ("[::1]:80", "::1"), ("[::1]x", ""), ("a:b", ""), (":80", ""),
])
def test_the_name_of_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


def test_vendored_files_are_what_their_checksums_say() -> None:
    vendor = files("velodrome.web") / "static" / "vendor"
    lines = (vendor / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    for line in lines:
        digest, name = line.split()
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest


def _raises(request: Request) -> Response:
    raise OverflowError("a mistake of ours")


async def _raises_directly(scope: Scope, receive: Receive, send: Send) -> None:
    raise OverflowError("a mistake of ours")


@pytest.mark.parametrize(("method", "path", "kind"), [
    ("GET", "/page", "text/html; charset=utf-8"), ("GET", "/api/numbers", "application/json"),
    ("POST", "/api/direct", "application/json"),
])
def test_the_answer_of_a_handler_that_raises_has_the_headers_of_every_other(method: str, path: str, kind: str) -> None:
    app = make_app([Route("/page", _raises), Route("/api/numbers", _raises)],
                   Security(open_posts=frozenset({"/api/direct"})), direct={"/api/direct": _raises_directly})
    answer = TestClient(app, base_url=HOME, raise_server_exceptions=False).request(method, path)
    assert answer.status_code == 500
    assert answer.headers["content-type"] == kind
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert answer.headers["cache-control"] == "no-store"
    assert "Something unexpected happened" in answer.text
    assert "a mistake of ours" not in answer.text
    with pytest.raises(OverflowError):  # the server prints it
        TestClient(app, base_url=HOME).request(method, path)

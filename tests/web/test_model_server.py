"""The interface of a model server, asked for as a program and as a hostile one does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hostile_files import GOOD, HOSTILE, picture
from tiny_models import brightness, counting, line
from velodrome.errors import BadRequest
from velodrome.serving.responses import LONGEST_TEXT, MOST_WORDS
from velodrome.web.model_api import check_runs, serve_app
from velodrome.web.security import Security


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    runs = tmp_path_factory.mktemp("served")
    for make in (brightness, line, counting):
        make(runs)
    app = serve_app(["brightness", "line", "counting"], runs)
    with TestClient(app, base_url="http://127.0.0.1:8300") as made:
        yield made


def post(client: TestClient, content: bytes, model: str = "brightness", path: str = "/api/predict") -> Any:
    return client.post(f"{path}?model={model}", files={"file": ("x.png", content, "image/png")})


def pixels(number: str) -> bytes:
    """A picture of 8×8 pixels as JSON, all of them this number."""
    return f'{{"x": {[[[0]] * 8] * 8}}}'.replace("0", number).encode()


def test_numbers_of_a_picture_are_answered_as_the_picture_is(client: TestClient) -> None:
    wanted = post(client, picture(colour=200)).json()["predictions"]
    given = client.post("/api/predict", content=pixels("200.0"), headers={"Content-Type": "application/json"})
    assert given.json()["predictions"] == wanted


def test_half_a_surrogate_in_a_text_is_no_failure_of_the_server(client: TestClient) -> None:
    content = b'{"text": "\\ud800 one"}'
    answer = client.post("/api/predict?model=counting", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert answer.json()["unknown"] == ["\ud800"]


def test_a_picture_gets_classes_with_probabilities(client: TestClient) -> None:
    answer = post(client, picture(colour=255))
    assert answer.status_code == 200
    found = answer.json()
    assert found["predictions"][0] == {"class": "light", "probability": pytest.approx(0.99995, abs=1e-4)}
    assert found["model"] == "brightness"
    assert found["milliseconds"] >= 0
    raw = client.post("/api/predict", content=picture(colour=0), headers={"Content-Type": "image/png"})
    assert raw.json()["predictions"][0]["class"] == "dark"


def test_rows_and_words_are_answered(client: TestClient) -> None:
    row = client.post("/api/predict?model=line", json={"width": 7}).json()
    assert row["predictions"] == [{"name": "price", "value": pytest.approx(130.0, abs=1e-3)}]
    words = client.post("/api/predict?model=counting&top=2", json={"text": "one four"}).json()
    assert words["predictions"][0]["class"] == "one"
    assert len(words["predictions"]) == 2
    assert words["unknown"] == ["four"]
    more = client.post("/api/generate", json={"model": "counting", "text": "one", "words": 2, "temperature": 0})
    assert more.json()["words"] == ["two", "three"]


def test_a_map_shows_what_the_model_looked_at(client: TestClient) -> None:
    found = post(client, picture(colour=255), path="/api/explain").json()
    assert found["class"] == "light"
    assert len(found["map"]) == 8
    assert post(client, picture(), "line", "/api/explain").status_code == 415


@pytest.mark.parametrize(("make", "status"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_hostile_files_get_a_sentence(client: TestClient, make: Callable[[], bytes], status: int) -> None:
    for path in ("/api/predict", "/api/explain"):
        answer = post(client, make(), path=path)
        assert answer.status_code == status
        assert answer.json()["error"]


@pytest.mark.parametrize("make", [row[1] for row in GOOD], ids=[row[0] for row in GOOD])
def test_ordinary_pictures_are_answered(client: TestClient, make: Callable[[], bytes]) -> None:
    assert post(client, make()).status_code == 200


#: A row with a number that begins with these digits and has 400 more.
LARGE = b'{"width": %s' + b"0" * 400 + b"}"


@pytest.mark.parametrize(
    ("path", "body", "kind", "status"),
    [
        ("/api/predict?model=nobody", b"{}", "application/json", 404),
        ("/api/predict?model=../../etc/passwd", b"{}", "application/json", 404),
        ("/api/predict?top=0", b"{}", "application/json", 422),
        ("/api/predict?top=1e9", b"{}", "application/json", 422),
        ("/api/predict?model=line", b"{", "application/json", 400),
        ("/api/predict?model=line", b"[" * 100_000, "application/json", 400),
        ("/api/predict?model=line", b"[]", "application/json", 422),
        ("/api/predict?model=line", b'{"width": NaN}', "application/json", 422),
        pytest.param("/api/predict?model=line", LARGE % b"1", "application/json", 422, id="400 digits"),
        pytest.param("/api/predict?model=line", LARGE % b"-1", "application/json", 422, id="400 digits below zero"),
        pytest.param("/api/predict?model=line", LARGE % (b"1" * 5_000), "application/json", 400, id="5,000 digits"),
        pytest.param("/api/predict?model=line", LARGE % b'"1' + b'"}', "application/json", 422, id="a text of digits"),
        pytest.param("/api/predict?model=brightness", pixels("1" + "0" * 400), "application/json", 422, id="pixels"),
        ("/api/predict?model=line", b'{"width": Infinity}', "application/json", 422),
        ("/api/predict?model=line", b'{"size": 1}', "application/json", 422),
        ("/api/predict?model=line", b"\xff\xfe", "application/json", 400),
        ("/api/predict?model=counting", b"{}", "application/json", 422),
        ("/api/predict?model=counting", b'{"text": 3}', "application/json", 422),
        ("/api/predict?model=counting", b"abc", "image/png", 415),
        ("/api/predict?model=brightness", b'{"x": [1]}', "application/json", 422),
        ("/api/predict?model=brightness", pixels("300"), "application/json", 422),
        ("/api/predict?model=brightness", pixels("-1"), "application/json", 422),
        ("/api/predict?model=brightness", pixels("1.5"), "application/json", 422),
        ("/api/predict?model=brightness", pixels("NaN"), "application/json", 422),
        ("/api/predict?model=line", b'{"\\ud800": 1}', "application/json", 422),
        ("/api/predict?model=%ff", b"{}", "application/json", 404),
        ("/api/predict", b"abc", "text/plain", 415),
        ("/api/predict", b"abc", "multipart/form-data; boundary=x", 400),
        ("/api/generate", b'{"text": "one"}', "application/json", 422),
        ("/api/generate", b'{"model": 3, "text": "one"}', "application/json", 422),
        ("/api/generate", b'{"model": "counting", "text": "one", "words": true}', "application/json", 422),
        ("/api/generate", b'{"model": "counting", "text": "one", "words": 1e400}', "application/json", 422),
        pytest.param("/api/generate", b'{"model": "counting", "text": "one", "temperature": 1%s}' % (b"0" * 400),
                     "application/json", 422, id="a temperature of 400 digits"),
        ("/api/generate", b'{"model": "counting", "text": "one", "seed": -1}', "application/json", 422),
        ("/api/explain", b"", "image/png", 422),
        ("/api/predict", b"x" * (17 << 20), "image/png", 413),
    ],
)
def test_requests_that_cannot_be_answered_get_a_sentence(
    client: TestClient, path: str, body: bytes, kind: str, status: int
) -> None:
    answer = client.post(path, content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.text.strip()
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_pages_of_other_sites_cannot_ask(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.post("/api/predict", content=picture(), headers={"Content-Type": "image/png", **headers})
    assert answer.status_code in (403, 421)


def test_other_machines_need_the_token(tmp_path: Path) -> None:
    brightness(tmp_path)
    security = Security.for_address("0.0.0.0", open_posts=("/api/predict",))
    with TestClient(serve_app(["brightness"], tmp_path, security=security), base_url="http://127.0.0.1") as client:
        assert client.get("/api/models").status_code == 401
        assert client.get("/api/models", headers={"Authorization": f"Bearer {security.token}"}).status_code == 200


def test_models_and_test_pictures_are_listed(client: TestClient) -> None:
    first, second, third = client.get("/api/models").json()["models"]
    assert first["picture"]["examples"] == ["dark", "dark", "dark", "light", "light"]
    assert set(first["picture"]["drawn"]) == {"dark", "fill"}
    assert [column["name"] for column in second["columns"]] == ["width", "colour"]
    assert third["words"] == 5
    shown = client.get("/api/example?index=4")
    assert shown.headers["content-type"] == "image/png"
    assert post(client, shown.content).json()["predictions"][0]["class"] == "light"
    for wrong in ("index=5", "index=-1", "index=x", "model=line&index=0"):
        assert client.get(f"/api/example?{wrong}").status_code in (404, 422)


def test_the_page_has_no_inline_script_and_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "3 models side by side" in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert " style=" not in page.text
    assert client.get("/static/model.js").status_code == 200


def test_every_path_is_described(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    assert set(described["paths"]) == {
        "/api/predict", "/api/explain", "/api/generate", "/api/models", "/api/example",
    }
    form = described["paths"]["/api/predict"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert form["schema"]["required"] == ["file"]
    assert described["components"]["schemas"]["model"]["enum"] == list(client.app.state.models.slots)
    sent = described["paths"]["/api/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert sent["properties"]["text"]["maxLength"] == LONGEST_TEXT
    assert sent["properties"]["words"]["maximum"] == MOST_WORDS


def test_a_run_without_a_model_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no run or folder"):
        check_runs(["nobody"], tmp_path)


def test_a_failed_export_is_told_and_the_others_answer(tmp_path: Path) -> None:
    brightness(tmp_path)
    broken = line(tmp_path, "broken")
    (broken / "model.onnx").write_bytes(b"no graph")
    with TestClient(serve_app(["broken", "brightness"], tmp_path), base_url="http://127.0.0.1") as client:
        answer = client.post("/api/predict", json={})
        assert answer.status_code == 409
        assert "ONNX Runtime cannot load" in answer.json()["error"]
        assert post(client, picture()).status_code == 200


@pytest.mark.integration
def test_serving_imports_no_training_framework(tmp_path: Path) -> None:
    brightness(tmp_path)
    code = (
        "import sys, json\nfrom pathlib import Path\nfrom velodrome.web.model_api import serve_app\n"
        "from velodrome.serving.model import LoadedModel\n"
        f"serve_app(['brightness'], Path({str(tmp_path)!r}))\n"
        f"LoadedModel(Path({str(tmp_path / 'brightness' / 'model')!r}), 'b')\n"
        "heavy = ('torch', 'tensorflow', 'keras', 'onnx', 'matplotlib')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True)
    assert json.loads(done.stdout) == []

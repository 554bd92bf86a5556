"""The page of a model in a real Chromium: draw a digit, send photos and files that are none, on a phone and a desk."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from start_command import served
from tiny_models import counting, digits, line

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import browser

pytestmark = [
    pytest.mark.e2e, pytest.mark.slow,
    pytest.mark.skipif(bool(browser.unavailable()), reason=browser.unavailable() or "there is a browser"),
]
#: Corners of a zero, from the middle of the canvas.
ZERO = [(round(60 * math.sin(turn * math.pi / 6)), round(-95 * math.cos(turn * math.pi / 6))) for turn in range(13)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of two digit classifiers, a regression and a language model."""
    runs = tmp_path_factory.mktemp("pages")
    digits(runs)
    digits(runs, "second")
    line(runs)
    counting(runs)
    with served(runs, "digits", "second", "line", "counting") as found:
        yield found


def until(driver: Any, what: Callable[[], Any], limit: float = 120.0) -> Any:
    """What a function returns, once that is true."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {limit} s: {driver.find_element('id', 'content').text[:500]}")


def loaded(driver: Any) -> None:
    """Wait until the page's inputs answer: the last thing that its script shows is how a program asks."""
    until(driver, lambda: driver.find_element("id", "programs").is_displayed())


def texts(driver: Any, places: str) -> list[str]:
    """What stands in some places, at one moment: the page may replace them at any time."""
    found: list[str] = driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)", places
    )
    return found


def answers(driver: Any) -> list[str]:
    return texts(driver, "#pictures .answer")


def draw(driver: Any) -> None:
    from selenium.webdriver import ActionChains

    canvas = driver.find_element("id", "canvas")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    hand = ActionChains(driver, duration=20).move_to_element_with_offset(canvas, *ZERO[0]).click_and_hold()
    for before, after in pairwise(ZERO):
        hand = hand.move_by_offset(after[0] - before[0], after[1] - before[1])
    hand.release().perform()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (820, True), (390, False)])
def test_a_drawn_zero_is_a_zero_at_every_width(address: str, width: int, dark: bool) -> None:
    with browser.chromium(width, dark=dark) as driver:
        driver.get(address)
        loaded(driver)
        draw(driver)
        found = until(driver, lambda: len(answers(driver)) == 2 and answers(driver))
        assert found[0].split()[:2] == ["digits", "0"]
        assert "ms on the server" in found[0]
        driver.find_element("id", "looked").click()
        until(driver, lambda: "supports 0" in driver.find_element("id", "caption").text)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.complaints(driver) == []
        if browser.axe_file().exists():
            assert browser.serious_findings(driver) == []


def test_a_zero_is_drawn_with_a_finger(address: str) -> None:
    with browser.chromium(390) as driver:
        driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
        driver.get(address)
        loaded(driver)
        middle = driver.execute_script(
            "const canvas = document.querySelector('#canvas'); canvas.scrollIntoView({block: 'center'});"
            "const box = canvas.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]"
        )
        before = driver.execute_script("return scrollY")

        def touch(kind: str, places: list[tuple[int, int]]) -> None:
            points = [{"x": middle[0] + across, "y": middle[1] + down} for across, down in places]
            driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        touch("touchStart", [ZERO[0]])
        for place in ZERO[1:]:
            touch("touchMove", [place])
        touch("touchEnd", [])
        found = until(driver, lambda: len(answers(driver)) == 2 and answers(driver))
        assert found[0].split()[:2] == ["digits", "0"]
        assert driver.execute_script("return scrollY") == before, "the page moved under the finger"


@pytest.mark.parametrize("event", ["new ClipboardEvent('paste', {clipboardData: held, bubbles: true})",
                                   "new DragEvent('drop', {dataTransfer: held, bubbles: true, cancelable: true})"],
                         ids=["pasted", "dropped"])
def test_a_photo_is_pasted_or_dropped(address: str, event: str) -> None:
    with browser.chromium(1280) as driver:
        driver.get(address)
        loaded(driver)
        driver.execute_async_script(
            "const done = arguments[0], canvas = document.createElement('canvas'); canvas.width = canvas.height = 20;"
            "canvas.toBlob((blob) => { const held = new DataTransfer();"
            "held.items.add(new File([blob], 'seen.png', {type: 'image/png'}));"
            f"document.body.dispatchEvent({event}); done(); }});"
        )
        until(driver, lambda: "seen.png" in driver.find_element("id", "caption").text)
        until(driver, lambda: len(answers(driver)) == 2 and "%" in answers(driver)[0])


def test_the_picture_of_the_documentation(tmp_path: Path) -> None:
    digits(tmp_path)
    digits(tmp_path, "second")
    with served(tmp_path, "digits", "second") as address, browser.chromium(1280) as driver:
        driver.get(address)
        loaded(driver)
        draw(driver)
        until(driver, lambda: len(answers(driver)) == 2)
        driver.find_element("id", "looked").click()
        until(driver, lambda: "supports 0" in driver.find_element("id", "caption").text)
        driver.execute_script("scrollTo(0, 0)")
        # With VELODROME_PICTURES=docs/images the picture of the documentation is made anew.
        picture = Path(os.environ.get("VELODROME_PICTURES", tmp_path)) / "model-page.png"
        browser.picture(driver, picture, 860)
        assert picture.stat().st_size > 10_000


def test_photos_and_a_file_that_is_none(address: str, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("L", (40, 40), 255).save(tmp_path / "white.png")
    (tmp_path / "bad.png").write_bytes(b"this is no picture")
    with browser.chromium(390) as driver:
        driver.get(address)
        loaded(driver)
        driver.find_element("id", "files").send_keys(str(tmp_path / "bad.png"))
        found = until(driver, lambda: answers(driver))
        assert "not a picture of a known format" in found[0]
        driver.find_element("id", "files").send_keys(str(tmp_path / "white.png"))
        until(driver, lambda: answers(driver) and "%" in answers(driver)[0])
        driver.find_element("css selector", "#examples button").click()
        until(driver, lambda: "test picture 1" in driver.find_element("id", "caption").text)
        # The one complaint is the refusal of the bad file, which browsers log as a failed request.
        assert all("415" in one for one in browser.complaints(driver))


def test_a_row_is_filled_in_by_keyboard(address: str) -> None:
    from selenium.webdriver.common.keys import Keys

    with browser.chromium(820) as driver:
        driver.get(address)
        field = until(driver, lambda: driver.find_elements("css selector", "#tables input"))[0]
        until(driver, lambda: texts(driver, "#tables .top") == ["110"])
        field.clear()
        field.send_keys("7", Keys.ENTER)
        until(driver, lambda: texts(driver, "#tables .top") == ["130"])


def test_words_are_continued(address: str) -> None:
    with browser.chromium(390) as driver:
        driver.get(address)
        loaded(driver)
        text = driver.find_element("id", "text")
        text.clear()
        text.send_keys("one two four")
        until(driver, lambda: "four" in driver.find_element("id", "unknown").text)
        driver.find_element("id", "generate").click()
        until(driver, lambda: "one two three" in driver.find_element("id", "generated").text)
        assert browser.complaints(driver) == []

"""A real Chromium for the tests of pages, driven by Selenium, and axe-core, which finds what a screen reader misses.

`python tests/servers/browser.py` installs both once: Chromium and its driver from Debian (needs root), axe-core from
npm.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from debian import install

AXE = "axe-core@4.14.0"
HOME = Path(os.environ.get("VELODROME_TEST_CACHE") or "~/.cache/velodrome-test").expanduser() / "browser"
_PACKAGES = ("chromium", "chromium-driver")
#: Without these Chromium asks hosts of its maker for updates.
_QUIET = ("--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
          "--disable-sync", "--disable-gpu", "--disable-dev-shm-usage")
#: Phone, tablet and desktop.
WIDTHS = (390, 820, 1400)


def axe_file() -> Path:
    return HOME / f"{AXE.replace('@', '-')}.min.js"


def unavailable() -> str:
    """Why no browser can be driven here; empty if one can."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    how = "python tests/servers/browser.py (needs network and root)"
    return f"no {missing[0]} on this machine: {how}" if missing else ""


def prepare() -> None:
    """Install what is missing. Needs the network, and root to install Debian's packages."""
    if unavailable():
        install(_PACKAGES)
    if not axe_file().exists():
        HOME.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            pack = ["npm", "pack", "--silent", AXE]
            subprocess.run(pack, cwd=folder, stdout=subprocess.DEVNULL, timeout=300, check=True)
            with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
                held = archive.extractfile("package/axe.min.js")
                assert held is not None
                partial = axe_file().with_suffix(".partial")
                partial.write_bytes(held.read())
                partial.replace(axe_file())


@contextmanager
def chromium(width: int = 1280, height: int = 900, *, dark: bool = False) -> Iterator[Any]:
    """A browser window of that size; whatever it loads is limited in time."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    with tempfile.TemporaryDirectory(prefix="velodrome-chromium-", ignore_cleanup_errors=True) as profile:
        for word in ("--headless", "--no-sandbox", *_QUIET, "--hide-scrollbars", f"--user-data-dir={profile}",
                     f"--window-size={width},{height}"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            driver.set_page_load_timeout(60)
            driver.set_script_timeout(60)
            resize(driver, width, height, dark=dark)
            yield driver
        finally:
            driver.quit()


def resize(driver: Any, width: int, height: int = 900, *, dark: bool = False) -> None:
    """Look as a screen of that width does, in light or dark."""
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
    })
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def picture(driver: Any, path: Path, height: int | None = None) -> None:
    """The page, or its upper part, as a PNG file."""
    size = driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": min(height or 4000, size["height"]), "scale": 1}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(taken["data"]))


def complaints(driver: Any) -> list[str]:
    """What the browser's console says since it was last asked: errors, and whatever the policy has blocked."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def serious_findings(driver: Any) -> list[str]:
    """What axe finds on the page that is serious or critical: the rule, and the first element."""
    driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe_file().read_text(encoding="utf-8")})
    found = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {resultTypes: ['violations']}).then((result) => done(result.violations))"
    )
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}: {one['nodes'][0]['failureSummary'][:300]}"
            for one in found if one["impact"] in ("serious", "critical")]


if __name__ == "__main__":
    prepare()
    sys.exit(unavailable() or 0)

"""The package as `pip install` leaves it: a wheel in an environment of its own, away from the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock
from samples import ROOT

#: What a wheel is built from.
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.py", "src")


def _once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that is filled once, for all pytest processes of a session (`-n`)."""
    of_all = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder = of_all / f"shared-{name}"
    with FileLock(of_all / f"{name}.lock", timeout=250):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy because a build leaves files behind."""
    return next(_once(tmp_path_factory, "wheel", _build).glob("*.whl"))


def _build(folder: Path) -> None:
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, source / name)
    build = ["pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([sys.executable, "-m", *build, "-w", folder, source], timeout=240, check=True)


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel; every other package is that of this environment."""
    return _once(tmp_path_factory, "environment", partial(_install, wheel)) / "bin"


def _install(wheel: Path, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], timeout=280, check=True)
    python = folder / "bin" / "python"
    install = ["install", "-q", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install, wheel], timeout=280, check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # Found after the wheel. An editable velodrome among them stays unseen: its own .pth file is not read from here.
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    for library in Path(sys.prefix, "lib").iterdir():  # MPI, which its wheel installs beside Python
        if not library.name.startswith("python"):
            (folder / "lib" / library.name).symlink_to(library)

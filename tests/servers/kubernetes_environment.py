"""The Python environment of the tests inside pods: folders of this machine, which nobody can write to there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import engine_environments
from kubernetes_build import POD_IMAGE

from velodrome.clusters import environments


def folders() -> list[Path]:
    """What the interpreter of the tests consists of, wherever its packages come from, and the engines' environments."""
    own = Path(sys.executable).resolve()
    wanted = [Path(sys.prefix), Path(sys.base_prefix), own.parents[1], engine_environments.HOME,
              *(Path(entry) for entry in sys.path if entry)]
    found: list[Path] = []
    for folder in sorted({folder for folder in wanted if folder.is_dir()}, key=lambda path: len(path.parts)):
        if not any(folder.is_relative_to(known) for known in found):
            found.append(folder)
    return found


def cluster(**fields: Any) -> dict[str, Any]:
    """A cluster of clusters.yaml whose pods have this environment."""
    mounted = {str(folder): f"host:{folder}:ro" for folder in folders()}
    variables = {environments.FOLDER: str(engine_environments.HOME), **fields.pop("environment", {})}
    return {
        "launcher": "k8s", "image": POD_IMAGE, "pull_policy": "Never", "python": sys.executable,
        "volumes": {**mounted, **fields.pop("volumes", {})}, "environment": variables, **fields,
    }

"""What a training process reports about itself before anything else: its host, interpreter, packages and hardware.

Imports no framework: versions come from package metadata, the names of GPUs from the driver.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from velodrome.catalog.registry import engine_of
from velodrome.errors import BadRequest
from velodrome.events.fields import SCHEMA_VERSION
from velodrome.job.job import Job
from velodrome.machine import cores
from velodrome.worker.probe import versions_of
from velodrome.worker.sampler import sampling_interval

#: Our own package, as a whole or with the training side only.
_OURS = ("velodrome", "velodrome-worker")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NVIDIA = Path("/proc/driver/nvidia/gpus")


def describe_process(job: str | None) -> dict[str, Any]:
    """The fields of the `hello` event of this process, which trains a job (as JSON)."""
    return {
        "schema": SCHEMA_VERSION,
        "host": socket.gethostname(),
        "clock": round(time.time(), 4),
        "interpreter": sys.executable,
        "python": platform.python_version(),
        "versions": _versions(job),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpu_names(),
        "heartbeat_seconds": sampling_interval(),
        **_machine(),
    }


def _machine() -> dict[str, str]:
    """The identity that the kernel gave itself when it booted; namespaces and containers see the same one."""
    with suppress(OSError):
        return {"machine": _BOOT.read_text().strip()}
    return {}


def _versions(job: str | None) -> dict[str, str]:
    packages: tuple[str, ...] = ()
    with suppress(ValidationError, BadRequest):  # reported when the job is read
        packages = engine_of(Job.model_validate_json(job or "")).packages
    found = versions_of((*_OURS, "numpy", *packages))
    ours = [found.pop(name) for name in _OURS if name in found]
    return {"velodrome": ours[0], **found} if ours else found


def gpu_names(folder: Path = _NVIDIA) -> list[str]:
    """The models of the NVIDIA GPUs that this process may use, in the driver's order."""
    found = []
    for information in sorted(folder.glob("*/information")):
        with suppress(OSError):
            lines = information.read_text(errors="replace").splitlines()
            found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    chosen = [word.strip() for word in visible.split(",") if word.strip()]
    if not all(word.isdecimal() for word in chosen):  # by UUID, or -1 for none
        return found if any(word.startswith(("GPU", "MIG")) for word in chosen) else []
    return [found[int(word)] for word in chosen if int(word) < len(found)]

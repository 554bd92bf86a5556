"""What a training process arranges with its host, and what it reports of it before anything else.

It pins its cores, avoids instructions that cannot work, and never outlives its controller. No framework is imported:
versions come from package metadata, the names of GPUs from the driver.

`python -m velodrome.training.host` prepares the data of a job on a host before the job's processes start there. The job
is in the environment, as for a training process; data comes from the host's cache, mirror or storage.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from velodrome.catalog.registry import engine_of
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events.fields import SCHEMA_VERSION
from velodrome.job.job import Job
from velodrome.machine import allowed_cores, cores
from velodrome.training.probe import versions_of
from velodrome.training.sampler import sampling_interval
from velodrome.variables import JOB

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


def claim_cores(slot: int, slots: int, threads: int | None) -> int:
    """Pin this process to its fair share of the host's cores; the threads it should use.

    With more processes than cores, each gets one core and shares it. In a container that may use only the time of fewer
    cores than it sees, nothing is pinned: every container would choose the same ones.
    """
    if slots == 0:
        return threads or 1
    allowed, count = allowed_cores(), cores()
    wanted = threads or max(1, count // slots)
    if count < len(allowed):
        return wanted
    if wanted * slots <= len(allowed):
        mine = allowed[slot * wanted : (slot + 1) * wanted]
    elif wanted == 1:
        mine = [allowed[slot % len(allowed)]]
    else:
        mine = allowed
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, mine)
    return wanted


def limit_threads(threads: int) -> None:
    """Tell numerical libraries, before they load, how many threads they may start."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)


def _prctl(option: int, value: object) -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the controller's main thread ends, and let py-spy look at us."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY)


def watch_lifeline() -> None:
    """End at once when the controller's end of our standard input closes, in whatever way it ended."""
    lifeline = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)

    def wait() -> None:
        with suppress(OSError):
            while os.read(lifeline, 4096):
                pass
        with suppress(OSError):
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os._exit(137)

    threading.Thread(target=wait, name="velodrome-lifeline", daemon=True).start()


_FLAG = "amx_tile"
#: What oneDNN, which both frameworks compute with, reads when it is first used, and the set before AMX.
_VARIABLE, _BEFORE_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
#: The question to CPUID how many kinds of tiles there are.
_TILES = 0x1D
#: push rbx; mov eax, LEAF; xor ecx, ecx; cpuid; pop rbx; ret
_CPUID = (b"\x53\xb8", b"\x31\xc9\x0f\xa2\x5b\xc3")


def avoid_missing_tiles() -> None:
    """Let frameworks do without AMX where it is announced and cannot work; before they compute anything."""
    if announces_tiles() and has_tiles() is False:
        os.environ.setdefault(_VARIABLE, _BEFORE_AMX)


def announces_tiles(about: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor's flags include AMX; only on Linux."""
    with suppress(OSError):
        return any(_FLAG in line.split() for line in about.read_text().splitlines() if line.startswith("flags"))
    return False


def has_tiles() -> bool | None:
    """Whether the processor describes tiles of AMX; None if it cannot be asked."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    with suppress(OSError, ValueError):  # where memory may not be executable
        return _cpuid(0) >= _TILES and _cpuid(_TILES) > 0
    return None


def _cpuid(leaf: int) -> int:
    """The first number that the processor answers: for leaf 0 the last leaf that it knows."""
    allowed = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    with mmap.mmap(-1, mmap.PAGESIZE, prot=allowed) as memory:
        memory.write(leaf.to_bytes(4, "little").join(_CPUID))
        code = ctypes.c_char.from_buffer(memory)
        answer: int = ctypes.CFUNCTYPE(ctypes.c_uint32)(ctypes.addressof(code))()
        del code  # the memory cannot be unmapped before
    return answer


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
    versions = versions_of((*_OURS, "numpy", *packages))
    ours = [versions.pop(name) for name in _OURS if name in versions]
    return {"velodrome": ours[0], **versions} if ours else versions


def gpu_names(folder: Path = _NVIDIA) -> list[str]:
    """The models of the NVIDIA GPUs that this process may use, in the driver's order."""
    models = []
    for information in sorted(folder.glob("*/information")):
        with suppress(OSError):
            lines = information.read_text(errors="replace").splitlines()
            models += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return models
    chosen = [word.strip() for word in visible.split(",") if word.strip()]
    if not all(word.isdecimal() for word in chosen):  # by UUID, or -1 for none
        return models if any(word.startswith(("GPU", "MIG")) for word in chosen) else []
    return [models[int(word)] for word in chosen if int(word) < len(models)]


def prepare_data() -> int:
    """Fetch and check what is missing; the exit code: 0, or 1 with the reason as the last line of standard error."""
    from velodrome.data import catalogue

    job = Job.model_validate_json(os.environ[JOB])
    if job.script is not None:
        return 0
    try:
        catalogue.prepare(job.dataset, bad_data=job.bad_data)
    except (VelodromeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(prepare_data())

"""Instructions that a processor announces and cannot execute: some virtual machines pass on the flags of AMX without
the description of its tiles. Products of matrices in bfloat16 then end the process (TensorFlow, SIGILL) or fail
(PyTorch)."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from contextlib import suppress
from pathlib import Path

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

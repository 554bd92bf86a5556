"""Processors whose flags include AMX and that have no tiles: frameworks are kept from using it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from velodrome.worker import processor


@pytest.mark.unit
@pytest.mark.parametrize(("announced", "there", "given", "expected"), [
    (True, False, None, "AVX512_CORE_FP16"), (True, False, "AVX2", "AVX2"), (True, True, None, None),
    (True, None, None, None), (False, False, None, None),
])
def test_amx_is_avoided_only_where_it_is_announced_and_missing(
    monkeypatch: pytest.MonkeyPatch, announced: bool, there: bool | None, given: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(processor, "announces_tiles", lambda: announced)
    monkeypatch.setattr(processor, "has_tiles", lambda: there)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if given is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", given)
    processor.avoid_missing_tiles()
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == expected


@pytest.mark.unit
def test_flags_are_those_of_the_processor(tmp_path: Path) -> None:
    about = tmp_path / "cpuinfo"
    about.write_text("model name: amx_tile\nflags\t\t: fpu amx_tile sse\n")
    assert processor.announces_tiles(about)
    about.write_text("flags\t\t: fpu amx_tiles sse\n")
    assert not processor.announces_tiles(about)
    assert not processor.announces_tiles(tmp_path / "missing")


@pytest.mark.unit
@pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is an instruction of x86-64")
def test_the_processor_answers() -> None:
    assert processor._cpuid(0) >= 0xD, "a processor of x86-64 with AVX"
    assert processor.has_tiles() in (True, False)


@pytest.mark.integration
def test_products_in_bfloat16_work_here() -> None:
    pytest.importorskip("torch")
    program = ("from velodrome.worker.processor import avoid_missing_tiles; avoid_missing_tiles(); import torch; "
               "print((torch.ones(64, 784, dtype=torch.bfloat16) @ torch.ones(784, 8, dtype=torch.bfloat16))[0, 0])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert "tensor(784." in done.stdout, done.stderr

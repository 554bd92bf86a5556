"""The matrix of engines: a row for everything that the registry has, and plain words where nothing was recorded."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from samples import ROOT

from velodrome.catalog import registry
from velodrome.catalog.base import Engine, Implementation, Strategy
from velodrome.catalog.exchange import BSP, NONE

sys.path.insert(0, str(ROOT / "docs"))
import engine_matrix

SPEED = {"ratio": 0.9, "low": 0.85, "high": 0.94, "velodrome": 900.0, "bare": 1000.0}


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(engine_matrix, "FILE", tmp_path / "engines.json")
    return tmp_path / "engines.json"


def _line(name: str) -> list[str]:
    (found,) = (line for line in engine_matrix.matrix_section().split("### How")[0].splitlines()
                if line.startswith(f"| `{name}`"))
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_every_strategy_and_consistency_of_every_engine_has_one_row() -> None:
    names = [row.name for row in engine_matrix.rows()]
    assert len(names) == len(set(names))
    wanted = sum(len(one.consistencies) or 1 for engine in registry.all_forms() for one in engine.strategies)
    assert len(names) == wanted
    assert {"mxnet/kvstore bsp", "mxnet/kvstore asp", "horovod-tensorflow/allreduce", "torch/fsdp"} <= set(names)


def test_a_new_engine_gets_its_rows_from_the_registry(monkeypatch: pytest.MonkeyPatch, records: Path) -> None:
    alone = Strategy("single", "one", consistency=NONE, max_workers=1,
                     implementation=Implementation(framework=("its loop",)))
    divided = replace(alone, name="parts", consistency=BSP, max_workers=None, roles=("server", "worker"),
                      shards=("weights",),
                      implementation=Implementation(own=("sums",), framework=("its loop", "rings")))
    gathered = replace(divided, name="gathered", shards=(), exchange="gather-and-scatter")
    new = Engine("new", "new", (alone, divided, gathered), worker="new", memory_bytes=0, upstream="dormant")
    monkeypatch.setattr(engine_matrix, "all_forms", lambda: [new])
    assert _line("new/single")[1:5] == ["1 worker", "none", "–", "–"]
    assert _line("new/parts")[1:5] == ["1 server, 2 workers", "bsp", "examples, weights",
                                       "framework's: rings. ours: sums"]
    assert _line("new/gathered")[3] == "examples, weights, gradients, optimizer state"
    assert _line("new/parts")[-1] == "dormant"


def test_a_strategy_that_sums_whole_gradients_divides_none() -> None:
    assert _line("jax/fsdp")[3] == "examples, weights, optimizer state"


def test_what_was_not_recorded_says_so_and_what_is_below_the_bar_is_named(records: Path) -> None:
    assert _line("torch/ddp")[5:9] == ["not recorded"] * 4
    row = next(row for row in engine_matrix.rows() if row.name == "torch/ddp")
    engine_matrix.record(row, "throughput", SPEED)
    size = {"memory_mb": {"worker": 300}, "bytes_per_step": 1_000_000, "gradient_bytes": 500_000}
    engine_matrix.record(row, "size", size)
    assert _line("torch/ddp")[5:9] == ["not recorded", "0.90 [0.85, 0.94]", "worker 300 MB", "1.00 MB (2.00 G)"]
    assert "Below 0.95 of the bare loop: `torch/ddp`." in engine_matrix.matrix_section()
    engine_matrix.record(row, "throughput", {"reason": "no bare loop"})
    assert _line("torch/ddp")[6] == "no bare loop"


def test_ends_are_recorded_only_when_asked_for_and_rows_that_are_gone_are_dropped(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(row for row in engine_matrix.rows() if row.name == "torch/ddp")
    monkeypatch.delenv("VELODROME_RECORD", raising=False)
    engine_matrix.record_end(row, "kill", "worker 1 was ended", 1.0, 45)
    assert not records.exists()
    records.write_text(json.dumps({"gone/single": {"throughput": SPEED}}))
    monkeypatch.setenv("VELODROME_RECORD", "1")
    engine_matrix.record_end(row, "kill", "worker 1 | was ended", 1.04, 45)
    assert list(engine_matrix.recorded()) == ["torch/ddp"]
    assert "| `torch/ddp` | killed (SIGKILL) | 1 s | 45 s | worker 1 \\| was ended |" in engine_matrix.matrix_section()
    assert _line("torch/ddp")[5] == "killed: 1 s"

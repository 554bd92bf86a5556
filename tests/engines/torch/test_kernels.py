"""The private functions of PyTorch that the engine calls: they are there, only one file calls them, and the public
functions that replace them give the same weights."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from velodrome.engines import torch as package  # noqa: E402
from velodrome.engines.torch import fused_optimizer, worker  # noqa: E402
from velodrome.engines.torch.fused_optimizer import FusedOptimizer  # noqa: E402
from velodrome.engines.torch.optimizer import Optimizer, StockOptimizer  # noqa: E402
from velodrome.job.job import Job  # noqa: E402

pytestmark = pytest.mark.unit

STEPS = 30


def trained(optimizer: type[Optimizer], job: Job, dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors after some steps by gradients that depend on them, one of which stays zero."""
    drawn = torch.Generator().manual_seed(3)
    tensors = [torch.nn.Parameter(torch.randn(shape, generator=drawn, dtype=dtype)) for shape in ((70, 7), (5,), (3,))]
    stepping = optimizer(job, tensors)
    for step in range(STEPS):
        if step == STEPS // 2:
            stepping.rate = job.rate / 2
        gradients = [(tensor * (1 + step % 3) + 0.1).detach() for tensor in tensors[:-1]]
        stepping.step([*gradients, torch.zeros(3, dtype=dtype)])
    return [tensor.detach() for tensor in tensors]


@pytest.mark.parametrize("name", fused_optimizer.PRIVATE)
def test_pytorch_still_has_the_private_function(name: str) -> None:
    assert hasattr(torch, name), f"torch.{name} is gone: remove it from fused_optimizer.py, its fallback trains"
    missing = fused_optimizer.choose_kernels(decoupled=name == "_fused_adamw_").missing
    assert name not in missing, f"torch.{name} takes other arguments or computes otherwise now"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("optimizer", "name"), [
    ("adam", "_fused_adam_"), ("adamw", "_fused_adamw_"), ("momentum", "_fused_sgd_"),
])
@pytest.mark.parametrize("how", ["dropped", "changed"])
def test_without_it_the_weights_are_the_same(monkeypatch, optimizer, name, dtype, tolerance, how) -> None:
    job = Job(optimizer=optimizer, weight_decay=0.1, nesterov=optimizer == "momentum")
    expected = trained(FusedOptimizer, job, dtype)
    if how == "dropped":
        monkeypatch.delattr(torch, name)
    else:
        monkeypatch.setattr(torch, name, lambda tensors: None)
    assert fused_optimizer.choose_kernels(decoupled=optimizer == "adamw").missing == (name,)
    for mine, wanted in zip(trained(FusedOptimizer, job, dtype), expected, strict=True):
        assert torch.allclose(mine, wanted, rtol=0, atol=tolerance)


def test_a_private_function_that_computes_something_else_is_replaced(monkeypatch) -> None:
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *lists, **settings: None)
    assert fused_optimizer.choose_kernels().missing == ("_fused_sgd_",)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("settings", [
    {"optimizer": "sgd"}, {"optimizer": "momentum"}, {"optimizer": "adam"}, {"optimizer": "adamw"},
    {"optimizer": "sgd", "weight_decay": 0.1}, {"optimizer": "momentum", "weight_decay": 0.1, "nesterov": True},
    {"optimizer": "adam", "weight_decay": 0.1}, {"optimizer": "adamw", "weight_decay": 0.3},
])
def test_stock_optimizers_give_the_same_weights(settings, dtype, tolerance) -> None:
    job = Job(**settings)
    for mine, wanted in zip(trained(StockOptimizer, job, dtype), trained(FusedOptimizer, job, dtype), strict=True):
        assert torch.allclose(mine, wanted, rtol=0, atol=tolerance)


def test_no_other_file_uses_a_private_name_of_pytorch() -> None:
    folder = Path(str(package.__file__)).parent
    used = {}
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                root = node.value
                while isinstance(root, ast.Attribute):
                    root = root.value
                if isinstance(root, ast.Name) and root.id in ("torch", "nn", "distributed", "functional"):
                    used.setdefault(file.relative_to(folder).as_posix(), set()).add(node.attr)
    assert used == {"fused_optimizer.py": set(fused_optimizer.PRIVATE)}


def test_the_c_library_takes_both_settings_of_malloc() -> None:
    """Fails on a C library that has no `mallopt`: training there is no worse than without this setting."""
    assert worker.keep_freed_memory()


def test_a_c_library_without_mallopt_is_no_obstacle(monkeypatch) -> None:
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda name: object())
    assert not worker.keep_freed_memory()


def test_denormals_are_flushed_to_zero() -> None:
    torch.set_flush_denormal(False)  # another test of this process may have trained
    smallest = torch.full((8,), 1e-38)
    flushed = []

    def work() -> None:
        assert worker.flush_denormals()
        flushed.append(float((smallest * 0.1).sum()))

    thread = threading.Thread(target=work)  # the setting is of a thread: the one that tests keeps its own
    thread.start()
    thread.join()
    assert flushed == [0.0]
    assert float((smallest * 0.1).sum()) > 0

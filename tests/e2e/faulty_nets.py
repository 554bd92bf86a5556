"""A user's PyTorch model that goes wrong as asked: in which rank, at which training step, in which way."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

RANK = int(os.environ.get("VELODROME_RANK", "0"))


def go_wrong(fault: str) -> None:
    if fault == "raise":
        raise ValueError("the user's own mistake")
    if fault == "exit":
        sys.exit(5)
    if fault.startswith("leave-"):
        os._exit(int(fault.removeprefix("leave-")))
    if fault == "sleep":
        time.sleep(3600)


class Faulty(nn.Module):
    def __init__(self, inputs: int, classes: int, fault: str, rank: int, at: int, pause: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))
        self.fault, self.at, self.pause = fault if rank in (RANK, -1) else "", at, pause
        self.steps = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.training:
            if self.fault == "sleep-evaluating" and self.steps:
                go_wrong("sleep")
            return self.layers(images)
        self.steps += 1
        time.sleep(self.pause)
        if self.steps == self.at:
            go_wrong(self.fault)
            if self.fault == "nan":
                return self.layers(images) * math.nan
        outputs = self.layers(images)
        return (images, outputs) if self.fault == "tuple" else outputs


def build(
    input_shape: tuple[int, int, int], classes: int, fault: str = "", rank: int = 1, at: int = 3, pause: float = 0.0,
    child: str | None = None, fork: str | None = None,
) -> nn.Module:
    """`rank` -1 means every rank; `child` names a program that the model starts and leaves running.

    `fork` names a file for the numbers of two processes that are copies of this one and sleep, one in its own session.
    """
    if fork is not None:
        for apart in (False, True):
            if (pid := os.fork()) == 0:
                if apart:
                    os.setsid()
                time.sleep(600)
            with Path(fork).open("a") as file:
                file.write(f"{pid}\n")
    if child is not None:
        subprocess.Popen([child, "600"], start_new_session=True)
    if at == 0 and rank in (RANK, -1):
        go_wrong(fault)
    outputs = classes + 1 if fault == "outputs" else classes
    inputs = 7 if fault == "shape" else math.prod(input_shape)
    return Faulty(inputs, outputs, fault, rank, at, pause)

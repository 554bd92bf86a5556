"""Compressed gradients (`--compress`): PyTorch's communication hooks of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from velodrome.engines.torch.process_group import ProcessGroup
from velodrome.job.job import Compression

#: Steps with whole gradients before PowerSGD begins: DistributedDataParallel arranges its buckets anew in the second,
#: and PyTorch's default of 1,000 would be longer than many jobs. A resumed run begins with them again.
POWERSGD_AFTER = 10


def hook_of(compress: str, transport: ProcessGroup) -> tuple[Any, Callable[..., Any]]:
    """What `register_comm_hook` takes: the hook's state and the hook."""
    chosen = Compression.parse(compress)
    group = transport.group or distributed.group.WORLD
    if chosen.kind == "powersgd":
        state = PowerSGDState(group, matrix_approximation_rank=chosen.rank, start_powerSGD_iter=POWERSGD_AFTER)
        return state, powerSGD_hook
    return group, default_hooks.fp16_compress_hook if chosen.kind == "fp16" else _bf16


def _bf16(group, bucket):  # type: ignore[no-untyped-def]  # PyTorch compares annotations, and takes none at all
    """PyTorch's own hook by another name: by its own it is refused on CPUs, where gloo sums bfloat16 nevertheless."""
    return default_hooks.bf16_compress_hook(group, bucket)

"""A script of the user's own: every engine runs it, and it brings its own distribution. No framework here.

Its processes get what `torchrun`, `TF_CONFIG`, Accelerate, Lightning and Horovod scripts expect in their environment,
whatever the engine is: a script may use several, and none of them reads another's variables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from velodrome.catalog.base import Strategy
from velodrome.catalog.exchange import SCRIPT
from velodrome.catalog.world import World

#: Stands for data set, strategy and consistency of a job whose script decides them.
LABEL = "script"

STRATEGY = Strategy(
    LABEL, "your own script: it brings its own distribution", consistency=SCRIPT,
    listens=("worker",),
)


def environment(world: World) -> Mapping[str, str]:
    """The variables of one process of a script."""
    return {**_torchrun(world), **_tensorflow(world), **horovod(world)}


def _torchrun(world: World) -> dict[str, str]:
    """As `torchrun` sets them; Accelerate and Lightning read them, too."""
    me, first = world.me, world.peers[0]
    host = _hosts(world).index(me.host)
    return {
        "MASTER_ADDR": first.host,
        "MASTER_PORT": str(first.port),
        "WORLD_SIZE": str(len(world.peers)),
        "RANK": str(me.rank),
        "LOCAL_RANK": str(me.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "GROUP_RANK": str(host),
        "GROUP_WORLD_SIZE": str(len(_hosts(world))),
        "ROLE_RANK": str(me.rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(len(world.peers)),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # By this Lightning knows that its processes were started by somebody else.
        "TORCHELASTIC_RUN_ID": "velodrome",
        # Nobody but rank 0 itself provides the store at MASTER_PORT.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _tensorflow(world: World) -> dict[str, str]:
    cluster = {"worker": [member.address for member in world.peers]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": world.me.rank}})}


def horovod(world: World) -> dict[str, str]:
    """As `horovodrun` sets them for Gloo; its rendezvous is a server in rank 0, at its address of the plan."""
    me, first = world.me, world.peers[0]
    beside = [member for member in world.peers if member.local_rank == me.local_rank]
    return {
        "HOROVOD_RANK": str(me.rank),
        "HOROVOD_SIZE": str(len(world.peers)),
        "HOROVOD_LOCAL_RANK": str(me.local_rank),
        "HOROVOD_LOCAL_SIZE": str(world.local_size),
        "HOROVOD_CROSS_RANK": str(beside.index(me)),
        "HOROVOD_CROSS_SIZE": str(len(beside)),
        "HOROVOD_HOSTNAME": me.host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(first.port),
    }


def _hosts(world: World) -> list[str]:
    return list(dict.fromkeys(world.hosts))

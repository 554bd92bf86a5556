"""The processes of a job as they know one another: role, rank, host, port, and place among those of the same host.

Also the variables by which `torchrun`, `TF_CONFIG`, Accelerate, Lightning and Horovod scripts know that: a script of
the user's own gets all of them, whatever its engine is, because it may use several, and none reads another's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

#: TensorFlow's names for our roles.
TASKS = {"worker": "worker", "server": "ps", "chief": "chief"}


@dataclass(frozen=True)
class Member:
    """One process of a job."""

    role: str
    rank: int
    host: str
    #: 0 if it does not listen.
    port: int
    #: Its number among the processes of its role on its host: which GPU it takes, for example.
    local_rank: int = 0

    @property
    def name(self) -> str:
        """`worker 1`, as messages call it."""
        return f"{self.role} {self.rank}"

    @property
    def address(self) -> str:
        """Host and port; an IPv6 address stands in brackets, because it has colons of its own."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.name} on {self.host}"


@dataclass(frozen=True)
class World:
    """All processes of a job, and which of them this one is."""

    members: tuple[Member, ...]
    me: Member

    def of_role(self, role: str) -> tuple[Member, ...]:
        """The members of a role, by rank."""
        return tuple(sorted((member for member in self.members if member.role == role), key=lambda member: member.rank))

    @property
    def peers(self) -> tuple[Member, ...]:
        """The members of this process's own role, itself among them."""
        return self.of_role(self.me.role)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each peer, by rank."""
        return tuple(member.host for member in self.peers)

    @property
    def local_size(self) -> int:
        """How many members of this process's role share its host."""
        return self.hosts.count(self.me.host)

    def most_on_a_host(self, role: str) -> int:
        """The largest number of members of a role that share a host, the same for every member; 1 if there are none."""
        return max(Counter(member.host for member in self.members if member.role == role).values(), default=1)

    def to_json(self) -> str:
        """The members as the environment carries them: every process reads the same list."""
        return json.dumps([asdict(member) for member in self.members])

    @classmethod
    def from_json(cls, text: str, role: str, rank: int) -> World:
        """The world as one of its members sees it; `ValueError` if it is not one of them."""
        members = tuple(Member(**fields) for fields in json.loads(text))
        mine = [member for member in members if (member.role, member.rank) == (role, rank)]
        if len(mine) != 1:
            raise ValueError(f"{role} {rank} is not one of the processes of this job")
        return cls(members, mine[0])

    @classmethod
    def alone(cls, role: str = "worker", host: str = "127.0.0.1") -> World:
        """The world of a job with one process."""
        me = Member(role, 0, host, 0)
        return cls((me,), me)


def numbered(members: Iterable[Member]) -> tuple[Member, ...]:
    """The members with their local ranks."""
    seen: Counter[tuple[str, str]] = Counter()
    ranked = []
    for member in members:
        ranked.append(replace(member, local_rank=seen[member.role, member.host]))
        seen[member.role, member.host] += 1
    return tuple(ranked)


def worlds(members: Sequence[Member]) -> list[World]:
    """The world of each member."""
    return [World(tuple(members), member) for member in members]


def cluster_of(world: World) -> dict[str, list[str]]:
    """The addresses of a job's processes by TensorFlow's task type, in the order of their ranks."""
    roles = dict.fromkeys(member.role for member in world.members)
    return {TASKS[role]: [member.address for member in world.of_role(role)] for role in roles}


def task_of(world: World) -> tuple[str, int]:
    """TensorFlow's task type and index of this process."""
    return TASKS[world.me.role], world.me.rank


def tensorflow(world: World) -> dict[str, str]:
    """The variable by which TensorFlow knows the cluster, and which task of it this process is."""
    task, index = task_of(world)
    return {"TF_CONFIG": json.dumps({"cluster": cluster_of(world), "task": {"type": task, "index": index}})}


def script_environment(world: World) -> Mapping[str, str]:
    """The variables of one process of a script; only workers are ranks of `torchrun` and Horovod."""
    if world.me.role != "worker":
        return tensorflow(world)
    hosts = list(dict.fromkeys(world.hosts))
    return {
        **torchrun(world),
        "GROUP_RANK": str(hosts.index(world.me.host)),
        "GROUP_WORLD_SIZE": str(len(hosts)),
        "ROLE_RANK": str(world.me.rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(len(world.peers)),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # By this Lightning knows that its processes were started by somebody else.
        "TORCHELASTIC_RUN_ID": "velodrome",
        # Nobody but rank 0 itself provides the store at MASTER_PORT.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        **tensorflow(world),
        **horovod(world),
    }


def torchrun(world: World) -> dict[str, str]:
    """As `torchrun` sets them; Accelerate and Lightning read them, too."""
    first = world.peers[0]
    return {
        "MASTER_ADDR": first.host,
        "MASTER_PORT": str(first.port),
        "WORLD_SIZE": str(len(world.peers)),
        "RANK": str(world.me.rank),
        "LOCAL_RANK": str(world.me.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
    }


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

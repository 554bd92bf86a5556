"""What the controller needs to know of MPI without loading it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from velodrome.engines.base import Address, Need

MPI_NEEDS = (Need("mpi4py", 'pip install "velodrome[mpi]"'),)


def mpi_environment(addresses: Sequence[Address], me: Address) -> Mapping[str, str]:
    """Where the ranks meet: rank 0 listens there, the others come to it."""
    first = addresses[0]
    return {
        "VELODROME_MPI_MEET": f"{first.host}:{first.port}",
        "VELODROME_MPI_SIZE": str(len(addresses)),
        "VELODROME_MPI_RANK": str(me.rank),
        "VELODROME_MPI_HOSTS": ",".join(address.host for address in addresses),
    }

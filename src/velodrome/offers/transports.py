"""What transports need to be installed: descriptions, nothing is loaded."""

from __future__ import annotations

from velodrome.offers.base import Need

MPI_NEEDS = (Need("mpi4py", 'pip install "velodrome[mpi]"'),)

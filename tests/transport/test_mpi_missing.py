"""An mpi4py that finds no MPI library is one sentence, without the list of all places where it looked."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from velodrome.errors import VelodromeError
from velodrome.transport import mpi

pytestmark = pytest.mark.unit


class Broken(ModuleType):
    rc = SimpleNamespace()

    def __getattr__(self, name: str) -> object:
        if name == "MPI":
            raise RuntimeError("cannot load MPI library\n/lib/libmpi.so: cannot open\nlibmpi.so.12: …")
        raise AttributeError(name)


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", Broken("mpi4py"))
    with pytest.raises(VelodromeError) as caught:
        mpi._load_mpi()
    assert str(caught.value) == (
        f'MPI cannot be loaded (cannot load MPI library): pip install "velodrome[mpi]" into {sys.prefix}'
    )

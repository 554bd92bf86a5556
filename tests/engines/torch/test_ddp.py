"""DistributedDataParallel's forward pass: a lost peer is told from an error of the model itself."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType

import pytest

torch = pytest.importorskip("torch")

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from velodrome.engines.torch.process_group import translate_errors_of_collectives  # noqa: E402
from velodrome.engines.torch.strategies.ddp import DDP_FILE  # noqa: E402
from velodrome.errors import PeerLost  # noqa: E402


def broken(*_: object) -> None:
    raise RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection closed by peer")


@pytest.fixture
def group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_connection_that_breaks_in_the_forward_pass_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    assert model(torch.ones(3, 2)).shape == (3, 1)

    in_ddp = FunctionType(broken.__code__.replace(co_filename=str(DDP_FILE)), {})
    monkeypatch.setattr(model, "_pre_forward", in_ddp)
    with pytest.raises(PeerLost, match=r"lost another worker: .*Connection closed by peer"):
        with translate_errors_of_collectives(DDP_FILE):
            model(torch.ones(3, 2))


@pytest.mark.usefixtures("group")
def test_the_same_words_from_the_model_are_the_models_error() -> None:
    model = torch.nn.Linear(2, 1)
    model.forward = broken
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        with translate_errors_of_collectives(DDP_FILE):
            DistributedDataParallel(model)(torch.ones(3, 2))

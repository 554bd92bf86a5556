"""Which models are outside the guarantee of equal weights is known before they are built, and jobs are told fairly."""

from __future__ import annotations

from typing import Any

import pytest

from velodrome.catalog.models import MODELS, ZooModel
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.models.checks import claims_equivalence, zoo_differences

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("model", [one for one in MODELS if one.takes == "images"], ids=lambda one: one.name)
def test_what_is_said_of_a_model_is_what_its_layers_do(model: ZooModel) -> None:
    torch = pytest.importorskip("torch")
    from velodrome.engines.torch.inspection import differences_of
    from velodrome.models.torch_zoo import build

    network, images = build(model.name, (3, 32, 32), 10), torch.rand(4, 3, 32, 32)
    assert zoo_differences(model.name) == differences_of(network, lambda tried: tried(images))


@pytest.mark.parametrize(("fields", "held"), [
    ({"strategy": "ddp", "workers": 2}, True), ({"strategy": "ddp", "workers": 1}, False),
    ({"strategy": "pipeline", "workers": 2}, True),
    ({"strategy": "pipeline", "workers": 2, "micro_batches": 1, "pipeline_schedule": "gpipe"}, False),
    ({"strategy": "tensor", "workers": 2}, False),
    ({"strategy": "tensor", "workers": 4, "mesh": "data=2,tensor=2"}, True),
    ({"engine": "jax", "strategy": "data-parallel", "workers": 2}, True),
    ({"engine": "mxnet", "strategy": "kvstore", "workers": 2, "consistency": "asp"}, False),
])
def test_the_promise_is_made_where_a_batch_is_divided(fields: dict[str, Any], held: bool) -> None:
    assert claims_equivalence(resolve(Job(**fields))) is held

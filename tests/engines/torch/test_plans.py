"""Where a pipeline is cut, and how `tensor` divides layers: derived from a model without training it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.unit


def test_stages_are_cut_where_the_slowest_is_fastest():
    from velodrome.engines.torch.strategies.pipeline_stages import cuts_of, groups_of, owners_of

    assert cuts_of([1, 1, 1, 3], 2) == [0, 3, 4]
    assert cuts_of([5, 1, 1, 1], 3) == [0, 1, 2, 4]
    assert cuts_of([1, 2, 3], 1) == [0, 3]
    layers = [(str(number), layer) for number, layer in enumerate([
        torch.nn.Flatten(), torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2), torch.nn.Tanh()])]
    groups = groups_of("mine", layers, 2)
    assert groups == [[0, 1, 2], [3, 4]]
    assert owners_of(groups, [0, 1, 2]) == [0, 0, 0, 1, 1]


def test_what_cannot_be_measured_is_cut_by_its_weights():
    from threading import Lock

    from velodrome.engines.torch.strategies.pipeline_stages import costs_of, seconds_of

    first, second = [torch.nn.Flatten(), torch.nn.Linear(4, 8)], [torch.nn.Linear(8, 3), torch.nn.Tanh()]
    inputs = torch.rand(5, 2, 2)
    assert all(0 < seconds < 10 for seconds in seconds_of([first, second], inputs))
    second[1].lock = Lock()  # which cannot be copied
    assert costs_of([first, second], inputs) == [40, 27]


def test_plans_follow_from_chains_of_dense_layers():
    from velodrome.engines.torch.strategies.plans import plan_of
    from velodrome.models import torch_zoo

    shape = (1, 28, 28)
    assert plan_of(torch_zoo.build("dense-128", shape, 10), 2) == {"dense1": "column", "dense2": "row"}
    assert plan_of(torch_zoo.build("dense-300-100", shape, 10), 2) == {
        "dense1": "column", "dense2": "row", "dense3": "gather"}
    assert plan_of(torch_zoo.build("dense-300-100", shape, 10), 3) == {"dense1": "column", "dense2": "row"}
    assert plan_of(torch_zoo.build("lenet5", shape, 10), 2) == {"dense1": "column", "dense2": "row"}
    assert plan_of(torch_zoo.build("linear", shape, 10), 3) == {}
    gpt = plan_of(torch_zoo.build_text("gpt-mini", 50, 8), 2)
    assert gpt["blocks.0.expand"] == "column"
    assert gpt["blocks.3.contract"] == "row"
    assert (gpt["blocks.1.qkv"], gpt["blocks.1.attended"]) == ("heads", "row")
    assert len(gpt) == 16
    assert len(plan_of(torch_zoo.build_text("gpt-mini", 50, 8), 3)) == 0, "neither heads nor widths divide by 3"
    assert plan_of(torch_zoo.build_text("lstm-small", 50), 2) == {
        "softmax": "gather", "embedding": "row", "lstm": "units"}
    assert plan_of(torch_zoo.build_text("lstm-small", 51), 2) == {"lstm": "units"}
    assert "lstm" not in plan_of(torch_zoo.build_text("lstm-small", 51), 3), "200 units"


def test_plans_and_stages_of_the_wrong_kind_are_refused():
    from velodrome.engines.torch.strategies.pipeline_stages import given_starts
    from velodrome.engines.torch.strategies.plans import plan_of
    from velodrome.errors import UsersCodeFailed

    model = torch.nn.Sequential(torch.nn.Linear(4, 8))
    model.stage_starts, model.tensor_plan = 3, ["0"]
    with pytest.raises(UsersCodeFailed, match="3 is not a list of layers"):
        given_starts("mine", model)
    with pytest.raises(UsersCodeFailed, match=r"\['0'\] is not a dictionary"):
        plan_of(model, 2)
    model.stage_starts = [3]
    assert given_starts("mine", model) == ["3"]


def test_only_layers_of_which_all_is_known_are_planned():
    from torch.nn.utils.parametrizations import weight_norm

    from velodrome.engines.torch.strategies.plans import plan_of

    class Doubled(torch.nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    class Centred(torch.nn.Identity):
        def forward(self, inputs):
            return inputs - inputs.mean(1, keepdim=True)

    def chain(*layers):
        return torch.nn.Sequential(torch.nn.Linear(4, 8), *layers, torch.nn.Linear(8, 3))

    act = torch.nn.ReLU()
    assert plan_of(chain(act, torch.nn.Linear(8, 8), act), 2) == {"0": "column", "2": "row"}
    assert plan_of(chain(act), 2) == {"0": "column", "2": "row"}
    assert plan_of(chain(Centred()), 2) == {}
    assert plan_of(chain(Doubled(8, 8)), 2) == {}
    assert plan_of(chain(weight_norm(torch.nn.Linear(8, 8))), 2) == {}
    tied = chain(act)
    tied[0].weight = torch.nn.Parameter(torch.zeros(8, 8))
    tied[2] = torch.nn.Linear(8, 8)
    tied[2].weight = tied[0].weight
    assert plan_of(tied, 2) == {}
    block = chain(act)
    assert plan_of(torch.nn.ModuleList([block, block]), 2) == {"0.0": "column", "0.2": "row"}


def test_an_embedding_is_planned_in_the_zoos_language_model_alone():
    from velodrome.engines.torch.strategies.plans import plan_of
    from velodrome.models import torch_zoo

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.softmax = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50)
            self.softmax.weight = self.embedding.weight

    assert plan_of(Tied(), 2) == {}
    apart = Tied()
    apart.softmax = torch.nn.Linear(8, 50)
    assert "embedding" not in plan_of(apart, 2), "it may use the weights without a call"
    zoo = torch_zoo.build_text("lstm-small", 50)
    zoo.softmax.weight = zoo.embedding.weight
    assert plan_of(zoo, 2) == {"lstm": "units"}


def test_chains_of_a_model_are_planned_where_their_calls_are_whole(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import torch_nets

    from velodrome.engines.torch.network import Network
    from velodrome.engines.torch.objectives import ObjectiveModule
    from velodrome.engines.torch.strategies.plans import plan_for
    from velodrome.engines.torch.task_objectives import ClassObjective
    from velodrome.tasks.base import Batch

    def plan(**arguments):
        model = torch_nets.nested((1, 4, 4), 3, **arguments)
        module = ObjectiveModule(model, ClassObjective("nested", 3))
        batch = Batch({"x": torch.rand(2, 1, 4, 4)}, {"y": torch.tensor([0, 2])})
        return plan_for(Network(model, module, from_zoo=False, sample=lambda: batch), 2)

    assert plan() == {"body.0": "column", "body.2": "row"}
    assert plan(whole=False) == {}, "the model uses what lies between the layers"

"""What may be asked of optimization, and what is refused with the reason."""

from __future__ import annotations

import pytest

from velodrome.catalog.registry import strategy_of
from velodrome.errors import BadRequest
from velodrome.job.check_optimization import left_out
from velodrome.job.job import Job, make_job
from velodrome.job.resolve import resolve

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("fields", "words"), [
    ({"warmup": "soon"}, ["--warmup", "'soon'", "2epochs"]),
    ({"warmup": "1.5"}, ["--warmup", "'1.5'"]),
    ({"milestones": "3,x", "schedule": "step"}, ["--milestones", "'x'"]),
    ({"ema": 1.0}, ["--ema", "less than 1"]),
    ({"label_smoothing": 1.0}, ["--label-smoothing", "less than 1"]),
    ({"accumulate": 0}, ["--accumulate", "greater than or equal to 1"]),
    ({"weight_decay": -1}, ["--weight-decay"]),
    ({"optimizer": "lion"}, ["--optimizer", "'lion'", "adamw", "module:function"]),
    ({"weights": "model.pt"}, ["--weights", "'model.pt'", "pickle", "safetensors.torch.save_file"]),
    ({"weights": "run.ckpt"}, ["--weights", "pickle"]),
    ({"weights": "model.onnx"}, ["--weights", ".safetensors, .keras, .weights.h5"]),
])
def test_a_wrong_value_is_named_with_the_way_out(fields, words) -> None:
    with pytest.raises(BadRequest) as refused:
        make_job(fields)
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(("fields", "reason"), [
    ({"nesterov": True}, "--nesterov: it is a form of momentum"),
    ({"schedule": "step"}, "--schedule step needs --milestones"),
    ({"milestones": "3"}, "belong to --schedule step"),
    ({"schedule": "step", "milestones": "3,2"}, "each must be larger"),
    ({"schedule": "step", "milestones": "3,2epochs"}, "all of them in steps, or all in epochs"),
    ({"schedule": "cosine", "decay": 0.5}, "--schedule cosine changes the learning rate already"),
    ({"schedule": "cosine", "schedule_by": "epoch", "warmup": "30"}, "needs whole epochs"),
    ({"optimizer": "my:make", "learning_rate": 0.1}, "--learning-rate 0.1: 'my:make' decides it"),
    ({"optimizer": "my:make", "weight_decay": 0.1}, "--weight-decay 0.1: 'my:make' decides it"),
    ({"optimizer": "my:make:more"}, "write your own as module:function"),
    ({"optimizer": "my:make", "engine": "tensorflow", "strategy": "allreduce"}, "choose multi-worker-mirrored"),
    ({"weights": "model.keras", "engine": "torch"}, "engine torch reads .safetensors; choose --engine tensorflow"),
])
def test_what_does_not_go_together_is_refused(fields, reason) -> None:
    with pytest.raises(BadRequest) as refused:
        resolve(Job(**fields))
    assert reason in str(refused.value)


KERAS_2 = {"engine": "horovod", "framework": "tensorflow"}
NO_OWN = "choose one of them, or --engine tensorflow or torch or accelerate or fabric or horovod"


@pytest.mark.parametrize(("fields", "reason"), [
    ({"strategy": "pipeline", "workers": 2, "dtype": "bfloat16"}, "torch/pipeline computes in float32 or float64"),
    ({"engine": "jax", "dtype": "bfloat16"}, "engine jax computes in float32 or float64; choose one of them, or"),
    ({"engine": "mxnet", "dtype": "bfloat16"}, "engine mxnet computes in float32 or float64"),
    ({**KERAS_2, "dtype": "bfloat16"}, "engine horovod with --framework tensorflow computes in float32 or float64"),
    ({"engine": "deepspeed", "strategy": "zero1", "dtype": "float64"},
     "--dtype float64: engine deepspeed computes in float32 or bfloat16; choose one of them, or --engine tensorflow"),
    ({"engine": "jax", "optimizer": "my:make"}, f"engine jax has sgd, momentum, adam, adamw; {NO_OWN}"),
    ({"engine": "mxnet", "optimizer": "my:make"}, f"engine mxnet has sgd, momentum, adam; {NO_OWN}"),
    ({**KERAS_2, "optimizer": "my:make"}, f"engine horovod with --framework tensorflow has sgd, momentum, adam, adamw; "
                                          f"{NO_OWN}"),
    ({"engine": "mxnet", "optimizer": "adamw"}, "'adamw': engine mxnet has sgd, momentum, adam; choose one"),
    *(({**fields, "weights": "a/Model.KERAS"}, f"{title} reads .safetensors; choose --engine tensorflow, or save")
      for fields, title in (
          ({"engine": "jax"}, "engine jax"), ({"engine": "mxnet"}, "engine mxnet"),
          ({"engine": "deepspeed", "strategy": "zero2"}, "engine deepspeed"), ({"engine": "fabric"}, "engine fabric"),
          ({"engine": "horovod"}, "engine horovod with --framework torch"),
          (KERAS_2, "engine horovod with --framework tensorflow"))),
])
def test_what_an_engine_does_not_have_is_refused_with_what_it_has(fields, reason) -> None:
    with pytest.raises(BadRequest) as refused:
        resolve(Job(**fields))
    assert reason in str(refused.value)


@pytest.mark.parametrize("fields", [
    {"engine": "jax", "dtype": "float64", "optimizer": "adamw", "weights": "a.safetensors"},
    {"engine": "deepspeed", "strategy": "zero1", "dtype": "bfloat16"},
    {"engine": "tensorflow", "weights": "a.weights.h5"}, {"engine": "tensorflow", "weights": "a.safetensors"},
])
def test_what_an_engine_has_is_taken(fields) -> None:
    assert resolve(Job(**fields)).engine == fields["engine"]


def test_weight_decay_has_the_default_of_adamw_and_none_for_the_others() -> None:
    assert Job(optimizer="adamw").decay_of_weights == 0.01
    assert Job(optimizer="adamw", weight_decay=0).decay_of_weights == 0
    assert [Job(optimizer=name).decay_of_weights for name in ("sgd", "momentum", "adam")] == [0, 0, 0]


def test_numbers_and_lists_of_a_file_are_taken_too() -> None:
    job = make_job({"warmup": 20, "schedule": "step", "milestones": ["2epochs", "4epochs"]})
    assert (job.warmup, job.milestones) == ("20", "2epochs,4epochs")
    assert make_job({"schedule": "step", "milestones": [100, 200]}).milestones == "100,200"


def test_a_schedule_replaces_the_decay_of_a_models_recipe() -> None:
    assert resolve(Job(model="lstm-small")).decay == 0.5
    assert resolve(Job(model="lstm-small", schedule="cosine")).decay is None


ASP = {"engine": "mxnet", "strategy": "kvstore", "consistency": "asp"}


@pytest.mark.parametrize("fields", [{"decay": 0.5}, {"schedule": "cosine"}, {"warmup": "2epochs"}])
def test_servers_that_keep_their_rate_refuse_what_changes_it(fields) -> None:
    (name, value), *_ = fields.items()
    with pytest.raises(BadRequest) as refused:
        resolve(Job(**ASP, **fields))
    assert str(refused.value) == (
        f"--{name} {value}: the servers of mxnet/kvstore asp keep the learning rate they began with; leave it out, or "
        "choose --consistency bsp"
    )
    assert getattr(resolve(Job(**{**ASP, "consistency": "bsp"}, **fields)), name) == value


def test_servers_that_keep_their_rate_leave_the_decay_of_a_models_recipe_out() -> None:
    job = resolve(Job(**ASP, model="lstm-small", workers=2))
    assert (job.decay, job.decay_after, job.learning_rate, job.epochs) == (None, 0, 1.0, 13)
    assert left_out(job, strategy_of(job)) == [
        "--decay 0.5, by default of model 'lstm-small', is left out: the servers of mxnet/kvstore asp keep the "
        "learning rate they began with"
    ]
    for other in (Job(**ASP), Job(model="lstm-small"), Job(**{**ASP, "consistency": "bsp"}, model="lstm-small")):
        assert left_out(resolve(other), strategy_of(resolve(other))) == []


def test_an_optimizer_of_ones_own_has_no_rate_that_the_job_records() -> None:
    job = resolve(Job(optimizer="my:make", model="lstm-small"))
    assert job.learning_rate is None
    assert job.rate == 1.0


def test_bfloat16_is_for_arithmetic_and_weights_stay_float32() -> None:
    assert [Job(dtype=dtype).weights_dtype for dtype in ("bfloat16", "float32", "float64")] == [
        "float32", "float32", "float64",
    ]

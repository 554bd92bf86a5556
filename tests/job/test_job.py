"""A job says what the user may say, fills in what follows, and refuses the rest in sentences."""

from __future__ import annotations

import pytest

from velodrome.clusters.yaml_files import parse_yaml, read_yaml
from velodrome.errors import BadRequest
from velodrome.job.job import Job, make_job
from velodrome.job.resolve import batch_of_step, replicas_of, resolve
from velodrome.job.values import Target

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workers": 0}, ["--workers", "0", "greater than or equal to 1"]),
        ({"workers": -3}, ["--workers", "-3"]),
        ({"batch_size": 0}, ["--batch-size", "0"]),
        ({"epochs": "ten"}, ["--epochs", "'ten'"]),
        ({"learning_rate": float("nan")}, ["--learning-rate", "nan"]),
        ({"stall_timeout": float("inf")}, ["--stall-timeout", "inf"]),
        ({"validation": float("nan")}, ["--validation", "nan"]),
        ({"learning_rate": -1.0}, ["--learning-rate", "-1.0"]),
        ({"validation": 1.5}, ["--validation", "1.5"]),
        ({"target": "accuracy>>1"}, ["--target", "'accuracy>>1'", "accuracy>=0.97"]),
        ({"target": "accuracy>=nan"}, ["accuracy>=nan"]),
        ({"target": "accuracy>=1e"}, ["accuracy>=1e"]),
        ({"optimizer": "adagrad"}, ["--optimizer", "adagrad", "sgd"]),
        ({"batch_scope": "local"}, ["--batch-scope", "local"]),
        ({"colour": "red"}, ["'colour'", "`velodrome train --help` lists all"]),
    ],
)
def test_a_wrong_field_is_refused_with_its_value(fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(BadRequest) as refusal:
        make_job(fields)
    for word in words:
        assert word in str(refusal.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(BadRequest) as refusal:
        make_job({"workers": 0, "epochs": 0, "validation": 2})
    assert all(option in str(refusal.value) for option in ("--workers", "--epochs", "--validation"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"engine": "nonsense"}, ["'nonsense'", "tensorflow", "torch"]),
        ({"strategy": "nonsense"}, ["'nonsense'", "ddp"]),
        ({"engine": "tensorflow", "strategy": "ddp"}, ["'ddp'", "of engine torch"]),
        ({"strategy": "ddp", "servers": 2}, ["--servers 2"]),
        ({"strategy": "tpu", "implementation": "stock"}, ["--implementation stock", "no stock form"]),
        ({"strategy": "single", "workers": 2}, ["--workers 2", "one process"]),
        ({"strategy": "ddp", "workers": 4, "batch_size": 3}, ["--batch-size 3", "4 workers"]),
        ({"target": "accuracy>=0.9", "validation": 0}, ["--target", "--validation 0"]),
        ({"strategy": "ddp", "keep_going": True}, ["--keep-going", "synchronous"]),
        ({"strategy": "ddp", "sync_every": 8}, ["--sync-every 8", "torch/local-sgd and torch/diloco do"]),
        ({"strategy": "fsdp", "compress": "fp16"}, ["--compress fp16", "(torch/ddp does)"]),
        ({"strategy": "pipeline", "workers": 4, "micro_batches": 3}, ["--micro-batches 3", "1f1b", "4 workers"]),
        ({"strategy": "pipeline", "batch_size": 8, "micro_batches": 9}, ["--micro-batches 9", "batch of 8"]),
        ({"strategy": "tensor", "workers": 2, "batch_scope": "per-worker"}, ["--batch-scope", "the same batch"]),
        ({"strategy": "ddp", "pipeline_schedule": "gpipe"}, ["--pipeline-schedule gpipe", "(torch/pipeline does)"]),
        ({"strategy": "ddp", "schedule": "gpipe"}, ["--pipeline-schedule gpipe", "(torch/pipeline does)"]),
        ({"strategy": "pipeline", "schedule": "gpipe", "pipeline_schedule": "1f1b"},
         ["--schedule gpipe and --pipeline-schedule 1f1b: choose one"]),
        ({"strategy": "tensor", "workers": 4, "mesh": "data=2,fsdp=2"}, ["--mesh", "write data=2,tensor=2"]),
        ({"strategy": "fsdp", "workers": 2, "mesh": "data=2,fsdp=2"}, ["--mesh", "use --workers 4"]),
        ({"strategy": "ddp", "mesh": "data=2,tensor=2"}, ["--mesh", "(torch/fsdp and torch/tensor do)"]),
        ({"strategy": "zero1", "optimizer": "mine:make"}, ["'mine:make'", "creates the optimizer itself"]),
    ],
)
def test_what_does_not_fit_together_is_refused(fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(BadRequest) as refusal:
        resolve(make_job(fields))
    for word in words:
        assert word in str(refusal.value)


def test_synchronous_batches_are_global_and_asynchronous_ones_per_worker() -> None:
    synchronous = resolve(Job(engine="torch", strategy="ddp", workers=2))
    asynchronous = resolve(Job(engine="tensorflow", strategy="parameter-server", workers=2))
    assert (synchronous.batch_scope, asynchronous.batch_scope) == ("global", "per-worker")
    assert asynchronous.servers == 1


@pytest.mark.parametrize(("optimizer", "rate"), [("adam", 0.001), ("sgd", 0.1), ("momentum", 0.05)])
def test_the_learning_rate_follows_the_optimizer(optimizer: str, rate: float) -> None:
    assert resolve(Job(optimizer=optimizer)).learning_rate == rate  # type: ignore[arg-type]
    assert resolve(Job(optimizer=optimizer, learning_rate=0.5)).learning_rate == 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "scope", "batch"),
    [("ddp", "global", 120), ("ddp", "per-worker", 360), ("parameter-server", "per-worker", 120),
     ("parameter-server", "global", 40)],
)
def test_a_step_takes_the_batch_of_all_workers_or_of_one(strategy: str, scope: str, batch: int) -> None:
    engine = "torch" if strategy == "ddp" else "tensorflow"
    fields = {"engine": engine, "strategy": strategy, "workers": 3, "batch_size": 120, "batch_scope": scope}
    job = resolve(make_job(fields))
    from velodrome.catalog.registry import strategy_of

    assert batch_of_step(job, strategy_of(job)) == batch


def test_a_target_is_reached_from_the_right_side() -> None:
    assert Target.parse("accuracy>=0.97").reached({"accuracy": 0.97, "loss": 9.0})
    assert not Target.parse("accuracy >= 0.97").reached({"accuracy": 0.969, "loss": 0.0})
    assert Target.parse("loss<=0.1").reached({"accuracy": 0.0, "loss": 0.1})
    assert not Target.parse("loss<=0.1").reached({"accuracy": 1.0, "loss": 0.11})


def test_a_job_file_that_cannot_be_read_is_named(tmp_path) -> None:
    for name, content, word in [
        ("list.yaml", "- a\n", "must hold fields"), ("broken.yaml", "a: [", "not YAML"),
        ("date.yaml", "seed: 2022-13-45", "not YAML"), ("bytes.yaml", None, "not UTF-8 text"),
    ]:
        path = tmp_path / name
        path.write_bytes(b"\xff\xfe\x00") if content is None else path.write_text(content)
        with pytest.raises(BadRequest, match=word):
            read_yaml(path)
    with pytest.raises(BadRequest, match="no file"):
        read_yaml(tmp_path / "absent.yaml")


@pytest.mark.parametrize("text", ["2022-13-45", "!!int x", "!!int ''", "!!bool x", "!!timestamp x", "[", "!odd x"])
def test_whatever_is_wrong_with_yaml_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_yaml(text)


@pytest.mark.parametrize(("fields", "engine"), [
    ({"strategy": "parameter-server"}, "tensorflow"), ({"strategy": "multi-worker-mirrored"}, "tensorflow"),
    ({"strategy": "ddp"}, "torch"), ({"strategy": "allreduce"}, "torch"), ({"strategy": "single"}, "torch"),
    ({}, "torch"),
])
def test_a_strategy_of_one_engine_brings_it_unless_somebody_named_another(
    fields: dict[str, object], engine: str
) -> None:
    assert resolve(make_job(fields)).engine == engine
    with pytest.raises(BadRequest, match="has no strategy 'central-storage'"):
        resolve(make_job({"engine": "torch", "strategy": "central-storage"}))


def test_a_strategy_brings_the_defaults_of_its_own_fields() -> None:
    assert resolve(Job(strategy="local-sgd", workers=2)).sync_every == 8
    diloco = resolve(Job(strategy="diloco", workers=2))
    assert (diloco.sync_every, diloco.optimizer, diloco.rate) == (50, "adamw", 0.001)
    assert resolve(Job(strategy="diloco", sync_every=3, optimizer="sgd")).optimizer == "sgd"
    assert resolve(Job(strategy="ddp", workers=2)).sync_every is None
    pipeline = resolve(Job(strategy="pipeline", workers=3, batch_size=4))
    assert (pipeline.micro_batches, pipeline.pipeline_schedule) == (4, "1f1b")
    assert resolve(Job(strategy="pipeline", workers=3)).micro_batches == 6


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_a_pipeline_is_scheduled_by_the_option_of_the_learning_rate_as_well(name: str) -> None:
    job = resolve(make_job({"strategy": "pipeline", "workers": 2, "schedule": name, "pipeline_schedule": None}))
    assert (job.pipeline_schedule, job.schedule) == (name, "constant")
    assert resolve(make_job(job.model_dump())) == job


def test_the_recipe_of_a_model_is_for_its_own_optimizer() -> None:
    """resnet20 is trained by momentum with a rate of 0.1, which is nothing for AdamW."""
    found = resolve(Job(strategy="diloco", model="resnet20", dataset="cifar-10"))
    assert (found.optimizer, found.rate, found.schedule, found.batch_size) == ("adamw", 0.001, "constant", 128)
    assert resolve(Job(strategy="ddp", model="resnet20", dataset="cifar-10")).optimizer == "momentum"


@pytest.mark.parametrize("text", ["fp8", "powersgd", "powersgd:0", "powersgd:-1", "powersgd:two", "fp16:2", ""])
def test_an_unknown_compression_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="fp16, bf16, or powersgd:RANK"):
        make_job({"strategy": "ddp", "compress": text})


@pytest.mark.parametrize("text", ["", "tensor=2", "data=2", "data=0,tensor=2", "data=2 x tensor=2", "tensor=2,data=2"])
def test_what_is_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="write one such as data=2,tensor=2"):
        make_job({"strategy": "tensor", "mesh": text})


def test_only_the_groups_of_a_mesh_divide_the_examples() -> None:
    assert replicas_of(resolve(Job(strategy="tensor", workers=6, mesh="data=3,tensor=2"))) == 3
    assert replicas_of(resolve(Job(strategy="fsdp", workers=6, mesh="data=3,fsdp=2"))) == 6
    assert replicas_of(resolve(Job(strategy="pipeline", workers=2))) == 1
    assert replicas_of(resolve(Job(strategy="ddp", workers=2))) == 2

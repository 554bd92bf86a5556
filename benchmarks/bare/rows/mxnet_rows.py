"""MXNet's own way: Gluon, its Trainer and its key-value store, started as its launcher starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "peers"))
from task import LEARNING_RATE, Clock, answer, read_task, take_core

task = read_task()


def start_all() -> int:
    """A scheduler, a server and the workers, as `tools/launch.py --launcher local` starts them."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    common = {
        **os.environ, "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port), "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(task.workers),
    }
    serve = [sys.executable, "-c", "import mxnet"]
    started = [subprocess.Popen(serve, env={**common, "DMLC_ROLE": role}) for role in ("scheduler", "server")]
    workers = [
        subprocess.Popen([sys.executable, *sys.argv], env={**common, "DMLC_ROLE": "worker", "RANK": str(rank)})
        for rank in range(task.workers)
    ]
    code = max(abs(worker.wait()) for worker in workers)
    for process in started:
        process.kill()
        process.wait()
    return code


if task.workers > 1 and "DMLC_ROLE" not in os.environ:
    sys.exit(start_all())
rank = int(os.environ.get("RANK", "0"))
take_core(rank)

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from mxnet import autograd, gluon  # noqa: E402
from mxnet.gluon import nn  # noqa: E402

mx.random.seed(1)
network = nn.HybridSequential()
if task.model == "dense-300-100":
    network.add(nn.Flatten(), nn.Dense(300, activation="relu"), nn.Dense(100, activation="relu"), nn.Dense(10))
else:
    network.add(
        nn.Conv2D(20, 5), nn.MaxPool2D(2), nn.Activation("tanh"), nn.Conv2D(50, 5), nn.MaxPool2D(2),
        nn.Activation("tanh"), nn.Flatten(), nn.Dense(500, activation="tanh"), nn.Dense(10),
    )  # fmt: skip
network.initialize(mx.init.Xavier())
network.hybridize(static_alloc=True)
store = None if task.workers == 1 else mx.kv.create("dist_async" if task.consistency == "asp" else "dist_sync")
trainer = gluon.Trainer(
    network.collect_params(), "adam", {"learning_rate": LEARNING_RATE}, kvstore=store,
    update_on_kvstore=None if store is None else task.consistency == "asp",
)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
with np.load(task.data, allow_pickle=False) as stored:
    images, labels = stored["images"].transpose(0, 3, 1, 2), stored["labels"]
order, place, generator = np.zeros(0, np.int64), 0, np.random.default_rng(rank)
# Under dist_sync the gradients of all workers are summed; under dist_async each is applied by itself.
size = task.batch * (1 if task.consistency == "asp" else task.workers)

clock = Clock()
for step in range(task.steps):
    clock.before_step(step)
    if place + task.batch > len(order):
        order, place = generator.permutation(len(labels)), 0
    chosen = order[place : place + task.batch]
    place += task.batch
    inputs = mx.nd.array(images[chosen].astype(np.float32) / 255)
    with autograd.record():
        loss = loss_of(network(inputs), mx.nd.array(labels[chosen]))
    loss.backward()
    trainer.step(size)
    # Without waiting now and then, steps are queued without end.
    loss.wait_to_read()
mx.nd.waitall()
if rank == 0:
    answer(clock.rate(task))

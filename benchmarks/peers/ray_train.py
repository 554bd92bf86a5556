"""Ray Train's TorchTrainer on a Ray cluster of this machine alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from task import LEARNING_RATE, Clock, answer, read_data, read_task, take_core


def train(config: dict[str, Any]) -> None:
    take_core(ray.train.get_context().get_local_rank())
    import torch
    import torch.nn.functional as functional
    from torch.utils.data import DataLoader, TensorDataset
    from torch_model import build

    task = config["task"]
    torch.set_num_threads(1)
    images, labels = read_data(task)
    dataset = TensorDataset(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels))
    loader = prepare_data_loader(DataLoader(dataset, batch_size=task.batch, shuffle=True, drop_last=True))
    model = prepare_model(build(task.model))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    clock, step, epoch = Clock(), 0, 0
    while step < task.steps:
        if task.workers > 1:
            loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            clock.before_step(step)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
            if step == task.steps:
                break
        epoch += 1
    rate = clock.rate(task)
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["result"]).write_text(str(rate))


if __name__ == "__main__":
    task = read_task()
    here = str(Path(__file__).resolve().parent)
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        result = Path(folder) / "examples_per_second"
        ray.init(
            num_cpus=task.workers, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=folder,
            log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": here}},
        )
        trainer = TorchTrainer(
            train,
            train_loop_config={"task": task, "result": str(result)},
            scaling_config=ScalingConfig(num_workers=task.workers, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=folder),
        )
        trainer.fit()
        ray.shutdown()
        answer(float(result.read_text()))

"""The callbacks report what their frameworks train and evaluate, by real trainers of tiny models."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from velodrome import callbacks, figures

#: Importing these frameworks takes longer than the tests.
pytestmark = [pytest.mark.slow, pytest.mark.integration]
Reports = list[tuple[str, Any, Any, Any, dict[str, float]]]


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")


@pytest.fixture
def reports() -> Iterator[Reports]:
    found: Reports = []
    figures.listen(lambda *report: found.append(report))
    yield found
    figures.listen(None)


def check(reports: Reports, examples: int, steps: int) -> None:
    """It began with a mark, trained on every example of two epochs, and reported a loss and its validations."""
    training = [report for report in reports if report[0] == "train"]
    assert training[0][1:] == (0, None, None, {})
    assert sum(report[2] or 0 for report in training) == 2 * examples
    assert max(report[1] or 0 for report in training) == steps
    assert any("loss" in report[4] for report in training)
    assert sorted({report[3] for report in training[1:]}) == [0, 1]
    held_out = [report for report in reports if report[0] == "validation"]
    assert [report[3] for report in held_out] == [0, 1]
    assert all("loss" in report[4] for report in held_out)


@needs("keras")
def test_keras(reports: Reports) -> None:
    import keras

    points = np.random.default_rng(1).standard_normal((50, 4), dtype=np.float32)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    callback = callbacks.Keras(examples=50)
    model.fit(points, points[:, :1], batch_size=16, epochs=2, validation_data=(points, points[:, :1]), verbose=0,
              callbacks=[callback])
    check(reports, 50, 8)
    assert not [report for report in reports if report[0] == "test"], "a validation of fit is no test"
    model.evaluate(points, points[:, :1], verbose=0, callbacks=[callback])
    assert reports[-1][0] == "test"
    assert set(reports[-1][4]) == {"loss", "mae"}


@needs("transformers")
@needs("accelerate")
def test_hugging_face(reports: Reports, tmp_path: Path) -> None:
    import torch
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, points: Any, labels: Any = None) -> Any:
            found = self.layer(points)
            return {"loss": ((found - labels) ** 2).mean(), "logits": found}

    rows = [{"points": point, "labels": point[:1]} for point in torch.randn(50, 4)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=16, eval_strategy="epoch",
        logging_steps=2, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        Model(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callbacks.HuggingFace()]
    )
    trainer.train()
    check(reports, 50, 8)


@needs("pytorch_lightning")
def test_lightning(reports: Reports, tmp_path: Path) -> None:
    import pytorch_lightning
    import torch

    class Model(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return ((self.layer(batch) - batch[:, :1]) ** 2).mean()

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("val_loss", self.training_step(batch, number))

        def test_step(self, batch: Any, number: int) -> None:
            self.log("test_loss", self.training_step(batch, number))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.randn(50, 4), batch_size=16)
    trainer = pytorch_lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, default_root_dir=tmp_path,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callbacks.Lightning()],
    )
    model = Model()
    trainer.fit(model, loader, loader)
    check(reports, 50, 8)
    trainer.test(model, loader, verbose=False)
    assert (reports[-1][0], list(reports[-1][4])) == ("test", ["loss"])

"""What `velodrome check` reports of an engine that cannot look into its own steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_loop import Heard, NumpyLearner

from velodrome.training import actions


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float64", 8), ("bfloat16", 4)])
def test_weights_and_gradients_are_counted_by_the_parameters(tmp_path: Path, dtype: str, size: int) -> None:
    heard = Heard(tmp_path, dtype=dtype)
    actions.check(heard.context, NumpyLearner(heard.context), workers=2)
    (inspection,) = (event for event in heard.events() if event["kind"] == "inspection")
    assert (inspection["weight_bytes"], inspection["gradient_bytes"]) == (640 * size, 640 * size)
    assert inspection.get("optimizer_bytes") is None


class ByStep(NumpyLearner):
    """Has a learning rate for every step of an epoch, as learners with a graph have."""

    rates: np.ndarray[Any, Any]

    def set_rates(self, rates: np.ndarray[Any, Any]) -> None:
        self.rates, self.rate = rates, float(rates[0])


def test_a_learner_gets_a_learning_rate_for_every_step_as_in_training(tmp_path: Path) -> None:
    heard = Heard(tmp_path, batch_size=100, schedule="cosine", schedule_by="step", learning_rate=0.25)
    learner = ByStep(heard.context)
    actions.check(heard.context, learner, workers=1)
    assert len(learner.rates) == heard.context.task.schedule(heard.context.job, heard.context.data, 1).steps > 1
    assert (learner.rates == 0.25).all()

"""A figure that a script printed and nobody read is offered with the option that reads it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from velodrome.job.script import check_pattern
from velodrome.run.outcome import pattern_for

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("printed", "group", "value"),
    [
        pytest.param("Test accuracy: 0.918", "test_accuracy", "0.918", id="test"),
        pytest.param("Epoch 3: train loss 0.51, val acc 91.2%", "validation_accuracy_percent", "91.2", id="epoch"),
        pytest.param("epoch 1 loss: 0.5\nFinal accuracy = 91.8\nsaved", "test_accuracy_percent", "91.8", id="final"),
        pytest.param("[5] loss=1.2e-3 | took 3s", "train_loss", "1.2e-3", id="loss"),
        pytest.param("Top-1 Acc: 76.1 (5.2)", "test_accuracy_percent", "76.1", id="top-1"),
        pytest.param("epoch 1 valid_loss 0.25 top1 0.91", "test_accuracy", "0.91", id="a loss alone is validated"),
        pytest.param("eval_loss=0.3 eval_f1=0.7", "validation_f1", "0.7", id="f1"),
        pytest.param(" * Acc@1 76.130 Acc@5 92.862", "test_accuracy_percent", "76.130", id="imagenet"),
        pytest.param("Epoch: [1][ 10/196]\tLoss 2.30 (2.31)\tAcc@1  12.50 ( 10.80)", "test_accuracy_percent", "12.50",
                     id="meters"),
        pytest.param("Test set: Average loss: 0.0265, Accuracy: 9913/10000 (99.1%)", "test_accuracy_percent", "99.1",
                     id="mnist"),
        pytest.param("loss: 0.3 - accuracy: 0.91 - val_loss: 0.2 - val_accuracy: 0.93", "validation_accuracy", "0.93",
                     id="keras"),
        pytest.param("{'eval_loss': 0.31, 'eval_accuracy': 0.91, 'epoch': 3.0}", "validation_accuracy", "0.91",
                     id="trainer"),
        pytest.param("Prec@1 71.5", "test_accuracy_percent", "71.5", id="precision-at-1"),
        pytest.param("F1-score: 0.77", "test_F1_score", "0.77", id="f1-score"),
        pytest.param("test/top5 = 98.1", "test_top5", "98.1", id="top-5"),
        pytest.param("val_mIoU 0.45", "validation_mIoU", "0.45", id="mean-iou"),
        pytest.param("eval ROC-AUC: 0.81", "validation_ROC_AUC", "0.81", id="roc-auc"),
        pytest.param("right: 9913/10000", None, "", id="part"),
        pytest.param("Accuracy of the network on the 10000 test images: 91 %", "test_accuracy_percent", "91", id="far"),
        pytest.param("score (a+b)*: x\nF1 (macro) f1 [0.5]", None, "", id="specials"),
        pytest.param("took 3 s\nstep 5", None, "", id="none"),
    ],
)
def test_a_pattern_is_made_from_a_line_that_was_printed(
    tmp_path: Path, printed: str, group: str | None, value: str
) -> None:
    log = tmp_path / "worker-0.log"
    log.write_text(printed)
    option = pattern_for(log)
    if group is None:
        assert option == ""
        return
    read, pattern = shlex.split(option)
    assert read == "--read"
    check_pattern(pattern)
    found = [match for line in printed.splitlines() if (match := re.search(pattern, line))]
    assert [match[group] for match in found] == [value]
    assert "Epoch" not in printed or not group.startswith("validation_acc") or found[0]["epoch"] == "3"


def test_without_a_log_nothing_is_offered(tmp_path: Path) -> None:
    assert pattern_for(tmp_path / "absent.log") == ""

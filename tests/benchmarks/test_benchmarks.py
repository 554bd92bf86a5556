"""The arithmetic, the claims and the process keeping behind the benchmarks; no network is trained here."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import stats


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))


def test_a_ratio_and_its_interval_are_those_of_the_log_ratios_mean():
    from ratios import ratio

    above, below = [210.0, 190.0, 205.0, 220.0], [100.0, 101.0, 98.0, 104.0]
    found = ratio(above, below)
    reference = stats.ttest_1samp(np.log(np.divide(above, below)), 0).confidence_interval(0.95)
    assert math.log(found.low) == pytest.approx(reference.low)
    assert math.log(found.high) == pytest.approx(reference.high)
    assert found.value == pytest.approx(stats.gmean(np.divide(above, below)))


def test_a_ratio_turned_round_is_the_inverse():
    from ratios import ratio

    there, back = ratio([3, 4, 5], [2, 2, 2]), ratio([2, 2, 2], [3, 4, 5])
    assert (there.value, there.low) == (pytest.approx(1 / back.value), pytest.approx(1 / back.high))


def test_one_repetition_has_no_interval():
    from ratios import difference, ratio

    assert (ratio([3], [2]).low, difference([3], [2]).high) == (None, None)
    assert str(ratio([3], [2])) == "1.50"


def test_claims_are_judged_against_the_best_peer_and_only_where_measured():
    from claims import DENSE2, judge

    rates = {
        (DENSE2, "velodrome torch ddp"): [100.0, 101.0, 99.0],
        (DENSE2, "torchrun ddp"): [80.0, 81.0, 79.0],
        (DENSE2, "accelerate"): [120.0, 121.0, 119.0],
        (DENSE2, "velodrome torch allreduce"): [200.0, None, 202.0],
    }
    verdicts = {verdict.claim: verdict for verdict in judge(rates)}
    ddp = verdicts["ddp is not behind the best PyTorch peer, dense-300-100:2"]
    assert (ddp.against, ddp.holds) == ("accelerate", False)
    allreduce = verdicts["torch allreduce against the best peer of all, dense-300-100:2"]
    assert allreduce.holds is True
    assert allreduce.estimate.repetitions == 2
    assert allreduce.estimate.value == pytest.approx(math.sqrt(200 / 120 * 202 / 119))
    assert verdicts["ddp is not behind the best PyTorch peer, lenet5:1"].holds is None


def test_being_level_within_the_interval_is_not_being_behind():
    from claims import DENSE1, judge

    rates = {(DENSE1, "velodrome torch ddp"): [95.0, 104.0, 99.0], (DENSE1, "torchrun ddp"): [100.0, 100.0, 100.0]}
    assert judge(rates)[0].holds is True


def test_a_rate_counts_training_only_within_the_time_and_within_epochs():
    from load import Progress, rate

    found = [
        Progress(10.0, 1, 100, 1.0), Progress(11.0, 1, 300, 2.0), Progress(12.0, 1, 500, 3.0),
        # A second of validation lies between the epochs.
        Progress(14.0, 2, 50, 0.5), Progress(15.0, 2, 250, 1.5), Progress(20.0, 2, 9999, 6.5),
    ]
    assert rate(found, 10.5, 16.0) == (200 + 200) / (1.0 + 1.0)
    assert rate(found, 12.5, 14.5) is None, "one report is no rate"


@pytest.mark.integration
def test_what_runs_in_the_background_ends_with_the_block():
    from running import background

    with background([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert process.poll() is None
    assert process.returncode == -9


@pytest.mark.integration
def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tmp_path):
    from running import RunError, run

    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys, time, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    began = time.monotonic()
    with pytest.raises(RunError, match="no end after 3 s"):
        run([sys.executable, "-c", code], seconds=3)
    assert time.monotonic() - began < 50  # and not until it ends by itself
    child = int(pid_file.read_text())
    for _ in range(50):
        try:
            if Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                break
        except FileNotFoundError:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        pytest.fail("the command's child in a session of its own still runs")


@pytest.mark.integration
def test_the_last_json_object_counts_and_a_failure_says_what_was_said():
    from running import RunError, run_json

    printed = "print('{\"a\": 1}'); print('{\"a\": 2}'); print('bye')"
    assert run_json([sys.executable, "-c", printed], seconds=100) == {"a": 2}
    with pytest.raises(RunError, match="exit code 3: my reason"):
        run_json([sys.executable, "-c", "import sys; print('my reason', file=sys.stderr); sys.exit(3)"], seconds=100)
    with pytest.raises(RunError, match="no JSON object"):
        run_json([sys.executable, "-c", "print('hello')"], seconds=100)


@pytest.mark.integration
def test_a_benchmark_that_is_told_to_end_ends_what_it_started(tmp_path):
    import signal
    import subprocess

    pid_file = tmp_path / "pid"
    child = f"import os, time, pathlib; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(60)"
    code = f"import sys, running; running.end_in_order(); running.run([sys.executable, '-c', {child!r}], seconds=60)"
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    benchmark = subprocess.Popen([sys.executable, "-c", code], cwd=folder)
    for _ in range(300):
        if pid_file.exists() and pid_file.read_text():
            break
        time.sleep(0.1)
    benchmark.send_signal(signal.SIGTERM)
    assert benchmark.wait(20) == 128 + signal.SIGTERM
    stat = Path(f"/proc/{pid_file.read_text()}/stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"

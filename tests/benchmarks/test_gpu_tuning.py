"""SFT beside TRL's, as on a GPU, with a small model: both sides train on the same rows, and the figures are theirs."""

from __future__ import annotations

import pytest

from benchmarks import gpu_tuning


@pytest.mark.data
def test_both_sides_train_on_every_row_and_are_timed_by_step(tmp_path, monkeypatch):
    for name, value in {"VOCABULARY": 400, "BATCH": 4, "WARM": 1, "MOST_CHARACTERS": 1500, "HELD_OUT": 0.3}.items():
        monkeypatch.setattr(gpu_tuning, name, value)
    gpu_tuning.prepare(tmp_path, 16, gpu_tuning.TINY)
    found = {side: gpu_tuning.measured("sft", side, tmp_path) for side in ("own", "stock")}
    assert {one["steps"] for one in found.values()} == {4}
    assert all(one["tokens"] > 100 and one["step_seconds"] > 0 for one in found.values())
    assert found["own"]["loss"] == pytest.approx(found["stock"]["loss"], rel=0.05)


def test_the_ratio_is_of_tokens_and_a_failure_is_no_figure():
    one = {"step_seconds": 0.1, "peak_gigabytes": 40.0, "loss": 2.0, "steps": 9}
    own, best = one | {"tokens_per_second": 3000.0}, one | {"tokens_per_second": 2000.0}
    lines = [*gpu_tuning.lines("sft", {"own": own, "best": best, "stock": {"error": "OutOfMemoryError"}})]
    assert lines[1].startswith("sft best: 2,000 tokens/s, own is 1.50 x, 100 ms a step, peak 40.0 GB")
    assert lines[2] == "sft stock: not measured: OutOfMemoryError"

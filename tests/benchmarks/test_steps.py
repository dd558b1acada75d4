"""The slope that is printed is that of the rows, and sizes differ in their documents alone."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import steps


def test_a_slope_a_doubling_is_found_with_its_interval():
    rows = [[1.0, 0.98 + noise, 0.96 - noise, 0.94, 0.92] for noise in (-0.01, 0.0, 0.01, 0.0)]
    assert steps.slope(rows) == pytest.approx(-0.02)
    flat = steps.slope_line("steps", [[1.0, 1.01, 0.99, 1.0, 1.0], [1.0, 0.99, 1.01, 1.0, 1.0]])
    assert flat.startswith(("steps: +0.00 %", "steps: -0.00 %"))


def test_the_larger_plan_has_the_more_documents(tmp_path):
    file = steps.token_file(tmp_path / "tokens.bin", 400)
    small, large = (steps.trainer_over(file, documents, steps=2) for documents in (100, 400))
    assert [len(trainer.plan.documents) for trainer in (small, large)] == [100, 400]
    assert isinstance(file, np.memmap) and steps.seconds_of(small, 1) > 0

"""Peaks of post-training and scoring on a mesh that does not exist, beside what is predicted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# In a process of its own, because it makes itself one of several for transformers and accelerate.
MEASURED = """
import json, sys
from dataclasses import replace
from benchmarks import fake_tuning
from training.pretrain.models.account import preset_shape
shape = replace(preset_shape("llama-3-8b"), layers=4)
rows = list(fake_tuning.rows_of(shape, 16, 4096, sys.argv[1] or None))
print(json.dumps([[phase, found / expected] for phase, found, expected in rows]))
"""


@pytest.mark.parametrize("control", ["", "whole"])
def test_every_phase_holds_what_is_predicted_and_weights_joined_at_once_show(control):
    done = subprocess.run([sys.executable, "-c", MEASURED, control], capture_output=True, text=True, check=True)
    ratios = dict(json.loads(done.stdout.splitlines()[-1]))
    trained = ("SFT", "adapters", "reward", "DPO", "GRPO")
    steps = {f"{phase} {name}" for phase in ("steps of", "save", "export") for name in trained}
    others = {"answers of GRPO", "rewards of GRPO", "start of DPO", "scores", "scores of a batch", "whole windows"}
    after = {"merge adapters", "scores of pairs"}
    assert steps | others | after <= set(ratios)
    differing = {phase for phase, ratio in ratios.items() if abs(ratio - 1) > 0.1}
    shows = (steps | after) - {"steps of reward"}  # whose own peak is higher than all weights, joined after it
    assert differing == (shows if control else set()), ratios

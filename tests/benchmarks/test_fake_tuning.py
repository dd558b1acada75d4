"""Peaks of post-training and scoring on a mesh that does not exist, beside what is predicted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import fake_tuning

# In a process of its own, because it makes itself one of several for transformers and accelerate.
MEASURED = """
import json, sys
from dataclasses import replace
from benchmarks import fake_tuning
from training.pretrain.models.account import preset_shape
shape = replace(preset_shape("llama-3-8b"), layers=4)
world, control, *parts = sys.argv[1:]
rows = list(fake_tuning.rows_of(shape, int(world), 4096, control or None, parts))
print(json.dumps([[phase, found / expected] for phase, found, expected in rows]))
"""


def ratios_of(world, control, parts):
    argv = [sys.executable, "-c", MEASURED, str(world), control, *parts]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def differing(ratios):
    return {phase for phase, ratio in ratios.items() if abs(ratio - 1) > 0.1}


TRAINED = ("SFT", "adapters", "reward", "DPO", "GRPO")
NAMED = (fake_tuning.FP32_SFT, fake_tuning.SOME_ADAPTERS, fake_tuning.SGD_SFT, "KTO")
OTHERS = {"answers of GRPO", "rewards of GRPO", "start of DPO", "scores", "scores of a batch", "whole windows"}


@pytest.mark.parametrize("control", ["", "whole"])
def test_every_phase_holds_what_is_predicted_and_weights_joined_at_once_show(control):
    parts = ("tune", "adapt", "reward", "align", "sample", "score")
    ratios = ratios_of(16, control, parts if control else fake_tuning.PARTS)
    steps = {f"{phase} {name}" for phase in ("steps of", "save", "export") for name in TRAINED}
    more = set() if control else {f"steps of {name}" for name in NAMED} | {"start of KTO", "save KTO"}
    after = {"merge adapters", "scores of pairs"}
    assert steps | OTHERS | after | more <= set(ratios)
    shows = (steps | after) - {"steps of reward"}  # whose own peak is higher than all weights, joined after it
    assert differing(ratios) == (shows if control else set()), ratios


def test_a_model_that_a_process_has_whole_takes_what_is_predicted():
    ratios = ratios_of(1, "", (*fake_tuning.PARTS, *fake_tuning.MORE))
    trained = {f"steps of {name}" for name in (*TRAINED, *NAMED, "GRPO in fp32")}
    assert trained | OTHERS | {"scores of pairs", "start of KTO", "loss of a sample of SFT"} <= set(ratios)
    assert differing(ratios) == set(), ratios

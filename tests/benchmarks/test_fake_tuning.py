"""Peaks of post-training and scoring on a mesh that does not exist, beside what is predicted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import fake_tuning

pytestmark = pytest.mark.timeout(1200)  # a minute of one core, beside other tests

# In a process of its own, because it makes itself one of several for transformers and accelerate.
MEASURED = """
import json, sys
from dataclasses import replace
from benchmarks import fake_tuning
from training.pretrain.models.account import preset_shape
world, *cases = json.loads(sys.argv[1])
found = []
for changed, length, control, parts in cases:
    shape = replace(preset_shape("llama-3-8b"), **changed)
    rows = fake_tuning.rows_of(shape, world, length, control, parts)
    found.append({phase: measured / expected for phase, measured, expected in rows})
print(json.dumps(found))
"""
SHAPE, LENGTH = {"layers": 2}, 4096
# A layer has more weights than the head, and keys and values are as wide as the states.
WIDE_LAYERS = {"layers": 4, "kv_heads": 32, "mlp_width": 11008, "vocab_size": 32000}


def ratios_of(world, *cases):
    argv = [sys.executable, "-c", MEASURED, json.dumps([world, *cases])]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def differing(ratios):
    return {phase for phase, ratio in ratios.items() if abs(ratio - 1) > 0.1}


TRAINED = ("SFT", "adapters", "reward", "DPO", "GRPO")
NAMED = (fake_tuning.FP32_SFT, fake_tuning.SOME_ADAPTERS, fake_tuning.SGD_SFT, fake_tuning.TOGETHER_SFT, "KTO")
OTHERS = {"answers of GRPO", "rewards of GRPO", "start of DPO", "scores", "scores of a batch", "whole windows"}
OTHERS |= {"answers of a batch", "rewards of a batch", "before and after alignment"}
OTHERS |= {f"{phase}{fake_tuning.GATHERED}" for phase in ("answers of GRPO", "steps of GRPO", "answers of a batch")}


def test_every_phase_holds_what_is_predicted_and_weights_gathered_at_once_show():
    cases = (SHAPE, LENGTH, None, fake_tuning.PARTS), (SHAPE, LENGTH, "whole", ("adapt",))
    wide = WIDE_LAYERS, 512, None, ("tune", "adapt", "reward", "score")
    # Contexts that several passes continue: their keys and values decide.
    long = {**WIDE_LAYERS, "layers": 8}, LENGTH, None, ("score",)
    ratios, gathered, of_wide_layers, of_contexts = ratios_of(16, *cases, wide, long)
    steps = {f"{phase} {name}" for phase in ("steps of", "save", "export") for name in TRAINED}
    more = {f"steps of {name}" for name in NAMED} | {"start of KTO", "save KTO", "merge adapters", "scores of pairs"}
    more |= {f"loss after the steps of {name}" for name in ("SFT", "adapters")}
    assert steps | OTHERS | more <= set(ratios)
    assert "steps of reward" in of_wide_layers and "scores of a batch" in of_wide_layers
    assert "scores of a batch" in of_contexts and differing(of_contexts) == set(), of_contexts
    assert differing(ratios) == differing(of_wide_layers) == set(), (ratios, of_wide_layers)
    wrong = {f"{phase} adapters" for phase in ("steps of", "save", "merge", "export", "loss after the steps of")}
    assert differing(gathered) == wrong, gathered


def test_a_model_that_a_process_has_whole_takes_what_is_predicted():
    # In which copies of layers would show, and the roots of all second moments.
    small = {"layers": 4, "vocab_size": 8192}, 512, None, ("reward", "tune_together")
    ratios, of_few_words = ratios_of(1, (SHAPE, LENGTH, None, (*fake_tuning.PARTS, *fake_tuning.MORE)), small)
    trained = {f"steps of {name}" for name in (*TRAINED, *NAMED, "GRPO in fp32", fake_tuning.DORA)}
    assert trained | OTHERS | {"scores of pairs", "start of KTO", "loss of a sample of SFT"} <= set(ratios)
    assert "scores of pairs" in of_few_words
    assert differing(ratios) == differing(of_few_words) == set(), (ratios, of_few_words)

"""What the code of post-training holds on tensors without content, beside the closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.training.pretrain.test_measured import SHAPE
from training.contract.records import read_record
from training.contract.run_settings import RunSettings
from training.posttrain.measured import SECTIONS, measured
from training.pretrain.capacity.needs import TOLERANCE, Tuning, tuning_bytes

# Libraries warn of a mesh on a CPU, which stands for GPUs here.
pytestmark = pytest.mark.filterwarnings("default")
FEW_WORDS = replace(SHAPE, layers=2, vocab_size=8192, tied_embeddings=True)
TWICE, ADAPTERS = {"trl": {"activation_checkpointing": True}}, {"peft": {"r": 16}}
SHARED = {"processes": 4, "shard": 4}
# By name: the stage, its shape, and fields of the section and of the layout.
TRAININGS = {
    "SFT with adapters": ("sft", FEW_WORDS, ADAPTERS, {}),
    "a reward model": ("reward", FEW_WORDS, TWICE, {}),
    "DPO": ("align", FEW_WORDS, {}, {}),
}
OTHER_TRAININGS = {
    "SFT": ("sft", SHAPE, {}, {}),
    "SFT with layers computed twice": ("sft", SHAPE, TWICE | {"max_length": 8192}, {}),
    "SFT in fp32": ("sft", SHAPE, {"precision": "fp32"}, {}),
    "SFT, shared": ("sft", SHAPE, {}, SHARED),
    "SFT, shared by two nodes, whose halves are replicas": ("sft", SHAPE, TWICE, {"nodes": 2, **SHARED}),
    "adapters, shared": ("sft", SHAPE, ADAPTERS, SHARED),
    "a reward model, shared": ("reward", SHAPE, {}, SHARED),
    "DPO with adapters": ("align", SHAPE, ADAPTERS, {}),
    "DPO, shared": ("align", SHAPE, TWICE, SHARED),
    "KTO": ("align", SHAPE, {"method": "kto", "batch_size": 4}, {}),
}


def ratios(stage, shape, fields, layout):
    run = RunSettings(**{"micro_batch_tokens": 4096} | layout)
    processes = run.nodes * run.processes
    data = {"data": [{"uri": "nowhere"}]} if stage == "sft" else {}
    given = data | {"batch_size": 8 * processes, "max_length": 1024} | fields
    section = read_record(SECTIONS[stage], given)
    learns = {"sft": "conversations", "reward": "pairs"}.get(stage) or section.declared.learns_from
    tuning = Tuning.of(shape, section, run, learns_from=learns, is_reward=stage == "reward")
    found = measured(stage, section, shape, run)
    return {name: found[name] / sum(parts.values()) for name, parts in tuning_bytes(tuning).items()}


@pytest.mark.parametrize("given", TRAININGS.values(), ids=TRAININGS)
def test_every_moment_of_a_training_holds_what_is_stated(given):
    found = ratios(*given)
    assert {name: ratio for name, ratio in found.items() if abs(ratio - 1) > TOLERANCE} == {}


@pytest.mark.parametrize("given", OTHER_TRAININGS.values(), ids=OTHER_TRAININGS)
def test_every_moment_of_other_trainings_holds_what_is_stated(given):
    test_every_moment_of_a_training_holds_what_is_stated(given)

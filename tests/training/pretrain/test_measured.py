"""What the trainer's own code holds on tensors without content, beside the closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.training.pretrain.capacity.test_needs import training
from tests.training.pretrain.shapes import preset_shape
from training.pretrain.capacity.needs import TOLERANCE, training_bytes
from training.pretrain.measured import measured
from training.pretrain.models.decoder import Decoder
from training.pretrain.models.shape import ExpertLayers

SHAPE = replace(preset_shape("llama-3-8b"), layers=4)
EXPERTS = ExpertLayers(count=16, active=4, width=1024)
LAYOUTS = {
    "alone, long rows computed twice": {"recompute": "full"},
    "shared": {"processes": 4, "shard": 4, "length": 512},
    "tensor": {"processes": 4, "tensor": 4, "recompute": "selective"},
    "few words": {"shape": replace(SHAPE, vocab_size=8192, tied_embeddings=True), "processes": 8, "shard": 8},
}
OTHER_LAYOUTS = {
    "alone": {},
    "alone, products computed once": {"recompute": "selective", "length": 2048},
    "in fp32": {"precision": "fp32", "length": 1024},
    "shared by two nodes, sent in bf16": {"nodes": 2, "processes": 8, "shard": 16, "gather_dtype": "bf16"},
    "ZeRO stage 2": {"processes": 8, "shard": 8, "zero_stage": 2},
    "ZeRO stage 1": {"processes": 8, "shard": 8, "zero_stage": 1},
    "context": {"processes": 4, "context": 4, "recompute": "full", "length": 2048},
    "tensor, context and shard": {"processes": 8, "tensor": 2, "context": 2, "shard": 2, "length": 2048},
    "replicas": {"processes": 8, "length": 2048},
    "experts": {"shape": replace(SHAPE, experts=EXPERTS), "processes": 8, "shard": 8, "length": 2048},
}


def ratios(given):
    trained, run = training(given.pop("shape", SHAPE), **given)
    stated, found = training_bytes(trained, run, on_gpu=True), measured(trained, run)
    return {name: found[name] / (sum(parts.values()) - parts["libraries"]) for name, parts in stated.items()}


@pytest.mark.parametrize("given", LAYOUTS.values(), ids=LAYOUTS)
def test_every_moment_holds_what_is_stated(given):
    found = ratios(dict(given))
    assert {name: ratio for name, ratio in found.items() if abs(ratio - 1) > TOLERANCE} == {}


@pytest.mark.parametrize("given", OTHER_LAYOUTS.values(), ids=OTHER_LAYOUTS)
def test_every_other_layout_holds_what_is_stated(given):
    test_every_moment_holds_what_is_stated(given)


def test_copies_of_the_weights_that_nobody_stated_would_show(monkeypatch):
    monkeypatch.setattr(Decoder, "keep_no_copies", lambda _: None)
    assert ratios({"processes": 8, "shard": 8, "length": 512})["step"] > 1 + TOLERANCE

"""Layers that keep no copies of their weights between the passes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from training.pretrain.models import experts
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.shape import ExpertLayers, ModelConfig

SMALL = ModelConfig(vocab_size=50, width=32, layers=2, heads=4, kv_heads=2, mlp_width=48, max_length=64)
MODELS = {
    "gated": SMALL,
    "not gated": dataclasses.replace(SMALL, activation="relu2"),
    "experts": dataclasses.replace(SMALL, experts=ExpertLayers(count=4, active=2, width=24, shared=1, first_layer=1)),
    "deepseek_v3": dataclasses.replace(
        SMALL,
        family="deepseek_v3",
        kv_heads=4,
        experts=ExpertLayers(count=4, active=2, width=24, shared=1, balancing="bias"),
        parts={"deepseek_v3": {"query_rank": 20, "key_value_rank": 12, "plain_width": 9, "value_width": 10}},
    ),
    "qwen2": dataclasses.replace(SMALL, family="qwen2"),
    "olmo2": dataclasses.replace(SMALL, family="olmo2", qk_norm=True),
    "olmo3": dataclasses.replace(SMALL, family="olmo3", qk_norm=True, window=8, window_pattern=("window", "full")),
}


def passed(config, *, is_lean, dtype):
    """The result and the gradients of a pass, and the bytes that it kept beside the activations."""
    model = Decoder(config)
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(1))
    if is_lean:
        model.keep_no_copies()
    kept = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = [tuple(parameter.shape) for parameter in model.blocks.parameters() if parameter.dim() > 1]
    matrices = {tuple(sorted(shape)) for whole in shapes for shape in (whole, whole[-2:])}

    def note(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.arange(7 * 13).view(7, 13) % 50  # of which no activation has the shape of a weight
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        states = model(tokens, one_document(tokens, dtype=dtype), dtype=dtype).states
    copies = sum(tuple(sorted(one.shape)) in matrices for one in kept.values())
    states.float().square().sum().backward()
    return states, [parameter.grad for parameter in model.blocks.parameters()], copies


CASES = [(name, dtype, False) for name in MODELS for dtype in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(("name", "dtype", "is_grouped"), [*CASES, ("experts", torch.bfloat16, True)])
def test_a_lean_layer_computes_the_same_and_keeps_no_copy_of_a_weight(monkeypatch, name, dtype, is_grouped):
    monkeypatch.setattr(experts, "has_grouped_products", lambda *_: is_grouped)
    states, gradients, copies = passed(MODELS[name], is_lean=False, dtype=dtype)
    lean_states, lean_gradients, none = passed(MODELS[name], is_lean=True, dtype=dtype)
    assert torch.equal(states, lean_states)
    for one, other in zip(gradients, lean_gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-5 if dtype == torch.float32 else 2e-2, atol=1e-5)
    assert none == 0 and (copies > 0 or name.startswith("olmo"))

"""Experts against transformers' own and against every expert run on every token."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from training.pretrain.models import experts
from training.pretrain.models.experts import Experts
from training.pretrain.models.layers import feed_forward, unit_rms
from training.pretrain.models.shape import ExpertLayers, ModelConfig

SHAPE = ModelConfig(
    vocab_size=50,
    width=16,
    layers=1,
    heads=4,
    kv_heads=2,
    mlp_width=8,
    max_length=64,
    experts=ExpertLayers(count=6, active=2, width=12),
)


def experts_of(**fields) -> Experts:
    activation = fields.pop("activation", "swiglu")
    changed = dataclasses.replace(SHAPE.experts, **fields)
    layer = Experts(dataclasses.replace(SHAPE, experts=changed, activation=activation))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return layer


def inputs() -> torch.Tensor:
    return torch.randn(3, 10, 16, generator=torch.Generator().manual_seed(1), requires_grad=True)


def every_expert_on_every_token(layer: Experts, x: torch.Tensor) -> torch.Tensor:
    """The same layer without sorting anything."""
    chosen = layer.config.experts
    unit = unit_rms(x, layer.config.norm_epsilon) * layer.norm
    scores = torch.softmax(unit @ layer.router.t(), dim=-1)
    ranked = scores + layer.bias if chosen.balancing == "bias" else scores
    mask = torch.zeros_like(scores).scatter(-1, ranked.topk(chosen.active, dim=-1).indices, 1.0)
    weights = scores * mask
    if chosen.normalize_weights:
        weights = weights / weights.sum(-1, keepdim=True)
    outputs = [
        feed_forward(unit, gate=None if layer.gate is None else layer.gate[n], up=layer.up[n], down=layer.down[n])
        for n in range(chosen.count)
    ]
    mixed = sum(weights[..., n, None] * output for n, output in enumerate(outputs))
    if chosen.shared:
        mixed = mixed + feed_forward(unit, gate=layer.shared_gate, up=layer.shared_up, down=layer.shared_down)
    return mixed


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"active": 1, "normalize_weights": False},
        {"shared": 2, "activation": "relu2"},
        {"balancing": "bias", "active": 3},
    ],
)
def test_sorted_tokens_give_what_every_expert_on_every_token_gives(fields):
    layer, x = experts_of(**fields), inputs()
    if fields.get("balancing") == "bias":
        layer.bias.copy_(torch.tensor([0.3, 0.0, -0.2, 0.0, 0.4, 0.0]))
    leaves = [x, *layer.parameters()]
    ours, _ = layer(x)
    theirs = every_expert_on_every_token(layer, x)
    assert torch.allclose(ours, theirs, atol=1e-5)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2))
    gradients = (torch.autograd.grad((mixed * weight).sum(), leaves) for mixed in (ours, theirs))
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("fields", [{}, {"active": 1, "activation": "relu2"}])
@pytest.mark.parametrize("recompute", [False, True])
def test_one_product_for_all_experts_gives_the_bits_of_one_for_each(monkeypatch, fields, recompute):
    results = []
    for is_grouped in (True, False):
        monkeypatch.setattr(experts, "has_grouped_products", lambda *_, is_grouped=is_grouped: is_grouped)
        layer, x = experts_of(width=16, **fields), inputs().bfloat16()
        with torch.no_grad():
            layer.router[3] = -100 * layer.router.sum(dim=0)  # one that may well get no token
        layer.recompute = recompute
        mixed, routing = layer(x)
        results.append([mixed, routing.loads, *torch.autograd.grad(mixed.float().square().sum(), layer.parameters())])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fields", [{}, {"active": 1, "activation": "relu2"}, {"balancing": "bias", "shared": 1}])
def test_with_grouped_products_the_host_reads_no_number_of_the_device(monkeypatch, fields):
    monkeypatch.setattr(experts, "has_grouped_products", lambda *_: True)
    with FakeTensorMode():  # it refuses all that depends on content
        layer = experts_of(width=16, **fields)
        x = torch.empty(3, 10, 16, dtype=torch.bfloat16, requires_grad=True)
        mixed, routing = layer(x)
        (mixed.float().square().sum() + routing.balance).backward()
        layer.rebalance(routing.loads)
        with pytest.raises((DynamicOutputShapeException, DataDependentOutputException)):
            torch.bincount(routing.loads.long(), minlength=6)


def test_products_are_grouped_where_a_gpu_has_them():
    def has(dtype=torch.bfloat16, *, device="meta", width=16):
        class There(torch.Tensor):
            device = torch.device("cuda")

        x = torch.empty(4, width, dtype=dtype, device="meta")
        x = x.as_subclass(There) if device == "cuda" else x
        return experts.has_grouped_products(x, torch.empty(3, 24, width, device="meta"))

    assert has(device="cuda") and not has()
    assert not has(torch.float32, device="cuda") and not has(device="cuda", width=12)


def test_no_token_is_dropped_when_all_want_the_same_expert():
    layer = experts_of(active=1)
    with torch.no_grad():
        layer.router.zero_()
        layer.router[4] = 1.0
    x = torch.rand(2, 8, 16) + 1.0
    with torch.no_grad():
        layer.norm.fill_(1.0)
    mixed, routing = layer(x)
    assert routing.loads.tolist() == [0, 0, 0, 0, 16, 0]
    assert torch.allclose(mixed, every_expert_on_every_token(layer, x), atol=1e-5)


def test_the_balancing_loss_is_that_of_transformers_for_each_row():
    layer, x = experts_of(), inputs()
    _, routing = layer(x)
    logits = (unit_rms(x, SHAPE.norm_epsilon) * layer.norm) @ layer.router.t()
    expected = sum(load_balancing_loss_func((row,), num_experts=6, top_k=2) for row in logits)
    assert routing.balance.item() == pytest.approx(expected.item(), rel=1e-5)
    assert routing.loads.sum() == 3 * 10 * 2
    (ours,) = torch.autograd.grad(routing.balance, layer.router)
    assert ours.abs().max() > 0


def test_rows_alone_and_together_have_the_same_balancing_loss():
    layer, x = experts_of(), inputs()
    together = layer(x)[1].balance
    alone = sum(layer(row[None])[1].balance for row in x)
    assert together.item() == pytest.approx(alone.item(), rel=1e-6)


def test_a_bias_moves_by_its_rate_against_the_load():
    layer = experts_of(balancing="bias", balance_weight=0.001)
    layer.rebalance(torch.tensor([10.0, 2.0, 6.0, 6.0, 4.0, 8.0]))
    assert layer.bias.tolist() == pytest.approx([-0.001, 0.001, 0.0, 0.0, 0.001, -0.001])


def test_a_bias_evens_out_a_router_that_prefers_one_expert():
    layer = experts_of(balancing="bias", balance_weight=0.01, active=1)
    with torch.no_grad():
        layer.router[2] += layer.norm * 0.5
    x = torch.randn(8, 32, 16, generator=torch.Generator().manual_seed(3))
    first = layer(x)[1].loads
    for _ in range(60):
        layer.rebalance(layer(x)[1].loads)
    last = layer(x)[1].loads
    assert last.std() < 0.5 * first.std()

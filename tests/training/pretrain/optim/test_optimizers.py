"""Optimizers against torch's, their papers and reference weights, and what a recipe says of them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.pretrain import tiny
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.export import hugging_face_views
from training.pretrain.models.shape import ExpertLayers, ModelConfig
from training.pretrain.optim.average_settings import AverageRecipe
from training.pretrain.optim.make import make_optimizers
from training.pretrain.optim.optimizers.muon import muon, orthogonalize
from training.pretrain.optim.schedule import set_learning_rates
from training.pretrain.optim.weights import Weights, whole

CONFIG = ModelConfig(vocab_size=50, width=32, layers=2, heads=4, kv_heads=2, mlp_width=48, max_length=64)


def test_muon_equals_torch_on_plain_matrices():
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    generator = torch.Generator().manual_seed(0)
    shapes = [(16, 40), (40, 16), (16, 40)]
    ours = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    optimizers = [muon([(parameter, whole) for parameter in ours], lr=0.02, weight_decay=0.1)]
    optimizers.append(torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1))
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(ours, theirs, strict=True):
        # bf16 products of one batch and of single matrices round differently.
        assert torch.allclose(one, other, atol=2e-3)


def test_orthogonalizing_moves_singular_values_near_one():
    singular = torch.linalg.svdvals(
        orthogonalize(torch.randn(3, 16, 64, generator=torch.Generator().manual_seed(0))).float()
    )
    assert singular.min() > 0.6 and singular.max() < 1.3


def test_fused_projections_are_orthogonalized_as_separate_matrices():
    model = Decoder(CONFIG)
    counts = sorted(
        tuple(part.reshape(-1, part.shape[-1]).shape) for p, parts in Weights(model).matrices() for part in parts(p)
    )
    assert counts == sorted([(32, 32), (16, 32), (16, 32), (32, 32), (48, 32), (48, 32), (32, 48)] * 2)


def test_norm_gains_do_not_decay_and_every_weight_has_one_optimizer():
    model = Decoder(CONFIG)
    recipe = tiny.PretrainRecipe(tokens=256, sequence_length=32, global_batch_tokens=256, optimizer="muon")
    optimizers = make_optimizers(model, recipe)
    held = [p for optimizer in optimizers.values() for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held}) == len(list(model.parameters()))
    undecayed = [p for group in optimizers["adamw"].param_groups if group["weight_decay"] == 0 for p in group["params"]]
    assert {id(p) for p in undecayed} == {id(p) for p in model.parameters() if p.dim() == 1}


def test_every_group_but_the_mean_s_follows_the_schedule():
    recipe = dataclasses.replace(
        tiny.PRETRAIN, optimizer="muon", learning_rate=0.04, muon_learning_rate=0.2, average=AverageRecipe(kind="ema")
    )
    optimizers = make_optimizers(Decoder(CONFIG), recipe)
    set_learning_rates(optimizers, 0.5)
    rates = {name: {group.get("lr") for group in one.param_groups} for name, one in optimizers.items()}
    assert rates == {"muon": {0.1}, "adamw": {0.02}, "average": {None}}


def test_a_recipe_is_read_and_its_memory_counted_without_torch():
    code = (
        "import sys\n"
        "from tests.training.pretrain.shapes import preset_shape\n"
        "from training.pretrain.capacity.needs import optimizer_bytes\n"
        "from training.pretrain.settings import OPTIMIZERS\n"
        "assert all(optimizer_bytes(preset_shape('1m'), name) for name in OPTIMIZERS)\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_embeddings_decay_only_when_they_are_asked_to():
    model = Decoder(dataclasses.replace(CONFIG, tied_embeddings=False))
    for decays in (True, False):
        recipe = dataclasses.replace(tiny.PRETRAIN, optimizer="adamw", decay_embeddings=decays)
        groups = Weights(model).groups(recipe.update)
        decaying = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
        assert {id(model.embedding) in decaying, id(model.head) in decaying} == {decays}
        assert id(model.blocks[0].mlp.up) in decaying


def test_experts_are_orthogonalized_one_by_one_and_their_router_is_not():
    shape = dataclasses.replace(CONFIG, experts=ExpertLayers(count=4, active=2, width=16, shared=1))
    model = Decoder(shape)
    layer = model.blocks[0].mlp
    parts = {id(p): [part.shape for part in parts_of(p)] for p, parts_of in Weights(model).matrices()}
    assert parts[id(layer.up)] == [(16, 32)] * 4 and parts[id(layer.shared_down)] == [(32, 16)]
    assert id(layer.router) not in parts


# One parameter, gradients from a generator, and the update as its paper writes it.


def steps_of(optimizer_name: str, shape: tuple[int, ...], reference, *, steps: int = 4, **fields) -> None:
    """Run the recipe's optimizer and the reference beside each other; they must agree."""
    recipe = dataclasses.replace(
        tiny.PRETRAIN, optimizer=optimizer_name, learning_rate=0.05, weight_decay=0.1, **fields
    )
    generator = torch.Generator().manual_seed(0)
    holder = torch.nn.Module()
    holder.weight = torch.nn.Parameter(torch.randn(shape, generator=generator))
    (optimizer,) = make_optimizers(holder, recipe).values()
    theirs, state = holder.weight.detach().clone().double(), {}
    for step in range(1, steps + 1):
        gradient = torch.randn(shape, generator=generator)
        holder.weight.grad = gradient.clone()
        optimizer.step()
        theirs = reference(theirs, gradient.double(), state, step)
        assert torch.allclose(holder.weight.double(), theirs, atol=1e-6), step


@pytest.mark.parametrize("shape", [(6, 4), (5,)])
def test_lion_equals_its_paper(shape):
    decay = 0.1 if len(shape) > 1 else 0.0

    def reference(weight, gradient, state, step):
        momentum = state.get("m", torch.zeros_like(weight))
        update = torch.sign(0.9 * momentum + 0.1 * gradient)
        state["m"] = 0.98 * momentum + 0.02 * gradient
        return weight - 0.05 * (update + decay * weight)

    steps_of("lion", shape, reference, beta2=0.98)


@pytest.mark.parametrize("shape", [(6, 4), (5,)])
def test_adamw_equals_its_paper(shape):
    """arXiv 1711.05101, algorithm 2; norm gains do not decay."""
    steps_of("adamw", shape, adamw_reference(0.05, 0.1 if len(shape) > 1 else 0.0), beta1=0.8, beta2=0.98)


def adamw_reference(rate: float, decay: float, beta1: float = 0.8, beta2: float = 0.98):
    def reference(weight, gradient, state, step):
        state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * gradient
        state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * gradient**2
        update = (state["m"] / (1 - beta1**step)) / ((state["v"] / (1 - beta2**step)).sqrt() + 1e-8)
        return weight - rate * (update + decay * weight)

    return reference


def muon_reference(rate: float, decay: float):
    """Keller Jordan's Muon for one matrix: Nesterov momentum of 0.95, five steps of the quintic iteration."""

    def reference(weight, gradient, state, step):
        state["m"] = 0.95 * state.get("m", 0) + 0.05 * gradient
        update = 0.05 * gradient + 0.95 * state["m"]
        x = update / update.norm()
        for _ in range(5):
            x = 3.4445 * x - 4.7750 * (x @ x.T @ x) + 2.0315 * (x @ x.T @ x @ x.T @ x)
        rows, columns = weight.shape
        return weight - rate * (max(1.0, rows / columns) ** 0.5 * x + decay * weight)

    return reference


def test_muon_steps_each_matrix_of_transformers_and_adamw_the_rest():
    """One reference for each weight that transformers names, so queries, keys and values apart, in double precision."""
    model = Decoder(dataclasses.replace(CONFIG, tied_embeddings=False, qk_norm=True))
    generator = torch.Generator().manual_seed(0)
    initialise(model, zero_outputs=False, generator=generator)
    recipe = dataclasses.replace(
        tiny.PRETRAIN, optimizer="muon", learning_rate=0.05, muon_learning_rate=0.3, weight_decay=0.1, beta1=0.8,
        beta2=0.98,
    )  # fmt: skip
    optimizers = make_optimizers(model, recipe)
    theirs, states = {name: weight_under(name, view) for name, view in hugging_face_views(model)}, {}
    for step in (1, 2, 3):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        gradients = gradients_of(model)
        before = {name: weight_under(name, view) for name, view in hugging_face_views(model)}
        for optimizer in optimizers.values():
            optimizer.step()
        for name, view in hugging_face_views(model):
            is_muon = ".layers." in name and view.dim() > 1
            decay = 0.1 if view.dim() > 1 else 0.0
            rule = muon_reference(0.3, decay) if is_muon else adamw_reference(0.05, decay)
            theirs[name] = rule(theirs[name], gradients[name], states.setdefault(name, {}), step)
            ours = weight_under(name, view)
            # The iteration multiplies in bf16, 8 bits, fifteen times over. Everything else agrees to fp32.
            allowed = 0.05 if is_muon else 1e-5
            assert (ours - theirs[name]).norm() <= allowed * (ours - before[name]).norm(), (name, step)
            theirs[name] = ours


def weight_under(name: str, view: torch.Tensor) -> torch.Tensor:
    joined = view.reshape(-1, view.shape[-1]) if ".self_attn." in name and view.dim() > 1 else view
    return joined.detach().clone().double()


def gradients_of(model: Decoder) -> dict[str, torch.Tensor]:
    """Under transformers' names: those of a model that has the gradients as its weights."""
    other = Decoder(model.config)
    with torch.no_grad():
        for weight, parameter in zip(other.parameters(), model.parameters(), strict=True):
            weight.copy_(parameter.grad)
    return {name: weight_under(name, view) for name, view in hugging_face_views(other)}


@pytest.mark.parametrize("shape", [(6, 4), (5,)])
def test_sgd_equals_its_definition(shape):
    decay = 0.1 if len(shape) > 1 else 0.0

    def reference(weight, gradient, state, step):
        gradient = gradient + decay * weight
        state["m"] = gradient if step == 1 else 0.8 * state["m"] + gradient
        return weight - 0.05 * state["m"]

    steps_of("sgd", shape, reference, momentum=0.8)


@pytest.mark.parametrize("shape", [(6, 4), (5,)])
def test_adafactor_equals_its_paper(shape):
    """arXiv 1804.04235, algorithms 4 and 5, with torch's step size: the given rate where it is below 1 / sqrt(step)."""
    decay = 0.1 if len(shape) > 1 else 0.0

    def reference(weight, gradient, state, step):
        beta = 1 - step**-0.8
        square = gradient**2
        if len(shape) > 1:
            state["r"] = beta * state.get("r", 0) + (1 - beta) * square.mean(1, keepdim=True)
            state["c"] = beta * state.get("c", 0) + (1 - beta) * square.mean(0, keepdim=True)
            second = state["r"] * state["c"] / state["r"].mean()
        else:
            second = state["v"] = beta * state.get("v", 0) + (1 - beta) * square
        update = gradient / second.sqrt()
        update = update / max(1.0, update.square().mean().sqrt().item())
        size = max(1e-3, weight.square().mean().sqrt().item()) * min(0.05, step**-0.5)
        return weight * (1 - 0.05 * decay) - size * update

    steps_of("adafactor", shape, reference)


@pytest.mark.data
def test_adamw_equals_the_reference_weights():
    expected = np.load(Path(os.environ["PEDIGREE_DATA"], "oracles", "nn_snapshots", "test_adamw.npz"))["array"]
    torch.manual_seed(42)
    layer = torch.nn.Linear(3, 2, bias=False)
    recipe = dataclasses.replace(
        tiny.PRETRAIN, optimizer="adamw", learning_rate=1e-3, weight_decay=0.01, beta1=0.9, beta2=0.999
    )
    (optimizer,) = make_optimizers(layer, recipe).values()
    for _ in range(1000):
        optimizer.zero_grad()
        x = torch.rand(3)
        ((layer(x) - torch.stack((x[0] + x[1], -x[2]))) ** 2).sum().backward()
        optimizer.step()
    assert np.allclose(layer.weight.detach().numpy(), expected, atol=1e-4)


def test_a_seed_fixes_the_weights():
    models = [Decoder(CONFIG) for _ in range(2)]
    for model in models:
        initialise(model, zero_outputs=True, generator=torch.Generator().manual_seed(5))
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))

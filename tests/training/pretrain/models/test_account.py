"""The arithmetic against the model itself, and against sums made by hand for Llama-3-8B."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.training.pretrain import tiny
from training.pretrain.models.account import (
    account,
    activation_bytes,
    least_bytes,
    optimizer_bytes,
    parameter_shapes,
    peak_teraflops,
    preset_shape,
)
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.experts import Experts
from training.pretrain.models.shape import ExpertLayers, ModelConfig, RotaryScaling
from training.pretrain.optim.make import make_optimizers
from training.pretrain.optim.optimizers import OPTIMIZERS

SMALL = ModelConfig(vocab_size=50, width=32, layers=3, heads=4, kv_heads=2, mlp_width=48, max_length=256)
YARN = RotaryScaling(kind="yarn", factor=4.0, original_length=64)
SHAPES = {
    "plain": SMALL,
    "qk-norm, wide heads": dataclasses.replace(SMALL, qk_norm=True, head_width=16, tied_embeddings=False),
    "olmo2": dataclasses.replace(SMALL, family="olmo2", qk_norm=True, head_width=16),
    "olmo3": dataclasses.replace(
        SMALL, family="olmo3", qk_norm=True, window=20, window_pattern=("window", "full"), rope_scaling=YARN
    ),
    "ungated, windows": dataclasses.replace(SMALL, activation="relu2", window=20, window_pattern=("window", "full")),
}
EXPERTS = dataclasses.replace(
    SMALL, experts=ExpertLayers(count=4, active=2, width=16, shared=1, first_layer=1), activation="relu2"
)


LATENT = {"key_value_rank": 12, "plain_width": 8, "value_width": 10}
DEEPSEEK = dataclasses.replace(
    SMALL,
    family="deepseek_v3",
    kv_heads=4,
    head_width=6,
    experts=ExpertLayers(count=4, active=2, width=16, shared=1, first_layer=1, balancing="bias"),
    parts={"deepseek_v3": {**LATENT, "query_rank": 14, "groups": 2, "weight_scale": 2.5}},
)


@pytest.mark.parametrize("shape", [*SHAPES.values(), EXPERTS, DEEPSEEK], ids=[*SHAPES, "experts", "deepseek_v3"])
def test_names_and_shapes_are_those_of_the_model(shape):
    with torch.device("meta"):
        model = Decoder(shape)
    assert dict(parameter_shapes(shape)) == {name: tuple(p.shape) for name, p in model.named_parameters()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer_bytes_are_those_that_the_optimizer_holds(optimizer):
    shape = dataclasses.replace(EXPERTS, activation="swiglu")
    model = Decoder(shape)
    optimizers = make_optimizers(model, dataclasses.replace(tiny.PRETRAIN, optimizer=optimizer))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    held = 0
    for one in optimizers.values():
        one.step()
        held += sum(t.numel() * 4 for state in one.state.values() for name, t in state.items() if name != "step")
    assert optimizer_bytes(shape, optimizer) == held


def kept_bytes(model: Decoder, *, rows: int, length: int) -> int:
    """Bytes that a pass keeps for its backward, each storage once, without weights, masks and rotations."""
    tokens = torch.zeros(rows, length, dtype=torch.long)
    mask = one_document(tokens, dtype=torch.float32, window=model.config.window)
    tables = model._rotary_tables(mask.positions, torch.float32)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        # A storage that is freed could be counted as the next one at its place, so each is held.
        held.append(tensor)
        if tensor.untyped_storage().data_ptr() not in weights and tensor.dtype == torch.float32:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    held: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(tokens, mask).states.sum()
    turned = sum(part.untyped_storage().nbytes() for table in tables for part in table)
    inside = {id(p) for module in model.modules() if isinstance(module, Experts) for p in module.parameters()}
    folded = 4 * sum(p.numel() for name, p in model.named_parameters() if name.endswith(FOLDED) and id(p) not in inside)
    if model.config.family.startswith("olmo"):  # whose layers have no norm before their products
        folded = 0
    return sum(kept.values()) - turned - folded


LATENTS = ("query", "query_down", "query_up", "key_value_down", "key_value_up")
FOLDED = ("query_key_value", "gate", "up", *LATENTS)  # kept a second time, with the gain of the norm before them


ROUTED = {
    "experts": dataclasses.replace(SMALL, experts=ExpertLayers(count=4, active=2, width=16)),
    "shared experts, ungated, first layer plain": EXPERTS,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v3 without latent queries": dataclasses.replace(DEEPSEEK, parts={"deepseek_v3": LATENT}),
    "one expert a token": dataclasses.replace(
        SMALL, experts=ExpertLayers(count=8, active=1, width=40, normalize_weights=False)
    ),
}


@pytest.mark.parametrize("shape", [*SHAPES.values(), *ROUTED.values()], ids=[*SHAPES, *ROUTED])
def test_activations_are_those_that_the_backward_pass_keeps(shape):
    model = Decoder(shape)
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(0))
    kept = kept_bytes(model, rows=3, length=150)
    # Norm gains times unit vectors, which only some layers make, are less than a thousandth.
    assert activation_bytes(shape, rows=3, length=150, number_bytes=4) == pytest.approx(kept, rel=1e-3)


def test_experts_in_bf16_keep_the_routers_numbers_in_fp32():
    shape = ROUTED["experts"]
    halves, whole = (activation_bytes(shape, rows=1, length=100, number_bytes=size) for size in (2, 4))
    routers = 3 * 100 * 4 * (32 + 4 + 2 + 1)
    assert 2 * (halves - routers) == whole - routers
    needed = least_bytes(shape, optimizer="adamw", rows=8, length=256, passes=2)
    assert needed["activations"] > activation_bytes(shape, rows=8, length=256) > 0


def test_less_is_kept_when_more_is_made_again():
    shape = preset_shape("llama-3-8b")
    none, selective, full = (
        activation_bytes(shape, rows=1, length=4096, recompute=kind) for kind in ("none", "selective", "full")
    )
    assert none > 1.5 * selective > 3 * full


def test_llama_3_8b_by_hand():
    sums = account(preset_shape("llama-3-8b"), length=8192)
    # Matrices of a layer: 4096 · (4096 + 1024 + 1024 + 4096) + 3 · 4096 · 14336; head 128256 · 4096.
    matrices = 32 * (41_943_040 + 176_160_768) + 525_336_576
    assert matrices == 7_504_658_432
    assert sums.parameters == matrices + 525_336_576 + 65 * 4096 == 8_030_261_248
    # 6 a weight, and 12 · 4096 · 4096 positions · 32 layers.
    assert sums.flops_per_token == 45_027_950_592 + 6_442_450_944
    assert sums.weight_bytes == sums.gradient_bytes == 32_121_044_992
    assert sums.optimizer_bytes == 64_242_089_984
    assert sums.cast_bytes == 2 * (matrices - 525_336_576)  # of the layers
    # A token in a layer: 4097 + (5120 + 1024 + 4096) + 4096 + 4097 + 4 · 14336 numbers; 4097 after the last layer.
    a_token = 32 * (4097 + 10_240 + 4096 + 4097 + 57_344) + 4097
    assert sums.activation_bytes == 2 * 8192 * a_token == 41_944_104_960


def test_the_least_memory_has_gradients_beside_activations_only_when_passes_follow_each_other():
    shape = preset_shape("llama-3-8b")
    settings = {"optimizer": "adamw", "length": 4096, "probabilities": False}
    one, few, several = (
        least_bytes(shape, rows=rows, passes=passes, **settings) for rows, passes in ((1, 1), (2, 1), (1, 8))
    )
    sums = account(shape, length=4096)
    kept = sums.activation_bytes + sums.cast_bytes
    assert several == {
        "weights": sums.weight_bytes,
        "optimizer": sums.optimizer_bytes,
        "gradients": sums.gradient_bytes,
        "activations": kept,
    }
    assert (one["gradients"], one["activations"]) == (0, kept) and kept > sums.gradient_bytes
    assert few["activations"] == 2 * sums.activation_bytes + sums.cast_bytes
    lean = least_bytes(shape, rows=1, passes=8, keeps_copies=False, **settings)
    assert lean == several | {"activations": sums.activation_bytes}
    # Products are not computed twice, and keep their weights.
    selective = account(shape, length=4096, recompute="selective").activation_bytes + sums.cast_bytes
    assert least_bytes(shape, rows=1, passes=8, recompute="selective", **settings)["activations"] == selective
    small = least_bytes(shape, rows=1, passes=1, recompute="full", averaged=True, **settings)
    assert (small["gradients"], small["activations"]) == (sums.gradient_bytes, 0)
    assert small["optimizer"] == sums.optimizer_bytes + sums.weight_bytes


def test_a_teacher_is_there_beside_the_student_and_leaves_its_states():
    shape, teacher = preset_shape("llama-3.2-1b"), preset_shape("llama-3-8b")
    settings = {"optimizer": "adamw", "rows": 2, "length": 4096, "passes": 4, "probabilities": False}
    alone, taught = (least_bytes(shape, teacher=one, **settings) for one in (None, teacher))
    assert taught["teacher"] == 4 * 8_030_261_248
    # States of 2 rows, and the head in bf16.
    assert taught["activations"] - alone["activations"] == 2 * (2 * 4096 * 4096) + 2 * (128_256 * 4096)
    assert {name: taught[name] for name in ("weights", "optimizer", "gradients")} == {
        name: alone[name] for name in ("weights", "optimizer", "gradients")
    }
    full = least_bytes(shape, teacher=teacher, number_bytes=4, **settings)["activations"]
    without = least_bytes(shape, number_bytes=4, **settings)["activations"]
    assert full - without == 4 * (2 * 4096 * 4096)  # an fp32 head is not cast


def test_peaks_are_found_by_the_names_of_drivers():
    assert peak_teraflops("NVIDIA H200") == 989.0 and peak_teraflops("NVIDIA A100-SXM4-80GB") == 312.0
    assert peak_teraflops("cpu") is None

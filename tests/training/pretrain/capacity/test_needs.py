"""The closed form against the model itself, and against sums made by hand for Llama-3-8B."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.training.pretrain import tiny
from tests.training.pretrain.shapes import preset_shape
from training.contract.run_settings import RunSettings
from training.order.batch_settings import BatchPhase
from training.pretrain.capacity.devices import device_of, step_seconds
from training.pretrain.capacity.needs import (
    Pretraining,
    activation_bytes,
    bf16_copies,
    certain_bytes,
    host_bytes,
    optimizer_bytes,
    training_bytes,
)
from training.pretrain.models.account import parameter_shapes, peak_teraflops
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.experts import Experts
from training.pretrain.models.shape import ExpertLayers, ModelConfig, RotaryScaling
from training.pretrain.optim.average_settings import AverageRecipe
from training.pretrain.optim.make import make_optimizers
from training.pretrain.optim.optimizers import OPTIMIZERS
from training.pretrain.parallel.degrees import Degrees
from training.pretrain.settings import PretrainRecipe

SMALL = ModelConfig(vocab_size=50, width=32, layers=3, heads=4, kv_heads=2, mlp_width=48, max_length=256)
YARN = RotaryScaling(kind="yarn", factor=4.0, original_length=64)
SHAPES = {
    "plain": SMALL,
    "qk-norm, wide heads": dataclasses.replace(SMALL, qk_norm=True, head_width=16, tied_embeddings=False),
    "qwen2": dataclasses.replace(SMALL, family="qwen2", head_width=16),
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


def test_less_is_kept_when_more_is_made_again():
    shape = preset_shape("llama-3-8b")
    none, selective, full = (
        activation_bytes(shape, rows=1, length=4096, recompute=kind) for kind in ("none", "selective", "full")
    )
    assert none > 1.5 * selective > 3 * full


def test_llama_3_8b_by_hand():
    shape = preset_shape("llama-3-8b")
    # Matrices of a layer: 4096 · (4096 + 1024 + 1024 + 4096) + 3 · 4096 · 14336; head 128256 · 4096.
    matrices = 32 * (41_943_040 + 176_160_768) + 525_336_576
    assert matrices == 7_504_658_432
    assert shape.parameter_count == matrices + 525_336_576 + 65 * 4096 == 8_030_261_248
    # 6 a weight, and 12 · 4096 · 4096 positions · 32 layers.
    assert shape.training_flops_per_token(8192) == 45_027_950_592 + 6_442_450_944
    assert optimizer_bytes(shape, "adamw") == 64_242_089_984
    assert bf16_copies(shape) == 2 * (matrices - 525_336_576)  # of the layers
    # A token in a layer: 4097 + (5120 + 1024 + 4096) + 4096 + 4097 + 4 · 14336 numbers; 4097 after the last layer.
    a_token = 32 * (4097 + 10_240 + 4096 + 4097 + 57_344) + 4097
    kept = activation_bytes(shape, rows=1, length=8192, probabilities=False)
    assert kept == 2 * 8192 * a_token == 41_944_104_960


def training(shape, length=4096, passes=2, precision="bf16", teacher=None, averaged=False, **run):
    """A training whose passes have a row each, and its layout."""
    settings = RunSettings(**{"micro_batch_tokens": length, **run})
    rows = passes * Degrees.of(settings).row_sets(settings.nodes * settings.processes)
    batch = {"sequence_length": length, "global_batch_tokens": rows * length}
    recipe = PretrainRecipe(tokens=4 * rows * length, precision=precision, optimizer="adamw", **batch)
    if averaged:
        recipe = dataclasses.replace(recipe, average=AverageRecipe(kind="ema"))
    phase = BatchPhase(tokens=recipe.tokens, **batch)
    return Pretraining(shape=shape, recipe=recipe, phase=phase, teacher=teacher), settings


def test_gradients_are_beside_activations_only_when_passes_follow_each_other():
    shape = preset_shape("llama-3-8b")
    one, several = (certain_bytes(*training(shape, passes=passes)) for passes in (1, 8))
    kept = activation_bytes(shape, rows=1, length=4096, probabilities=False)
    whole = 4 * shape.parameter_count
    assert several == {
        "weights": whole,
        "optimizer": 2 * whole,
        "gradients": whole,
        "activations": kept + bf16_copies(shape),
    }
    assert "gradients" not in one and one["activations"] == several["activations"] > whole
    small = certain_bytes(*training(shape, passes=1, recompute="full", averaged=True))
    assert small == {"weights": whole, "optimizer": 3 * whole, "gradients": whole}  # after the backward pass


def test_a_teacher_is_there_beside_the_student_and_leaves_its_states():
    shape, teacher = preset_shape("llama-3.2-1b"), preset_shape("llama-3-8b")
    alone, taught = (certain_bytes(*training(shape, teacher=one)) for one in (None, teacher))
    assert taught["teacher"] == 4 * 8_030_261_248
    # The states of a row, and the head in bf16.
    assert taught["activations"] - alone["activations"] == 2 * 4096 * 4096 + 2 * 128_256 * 4096
    full, without = (certain_bytes(*training(shape, precision="fp32", teacher=one)) for one in (teacher, None))
    assert full["activations"] - without["activations"] == 4 * 4096 * 4096  # an fp32 head is not cast


def test_a_large_model_is_shared_at_every_moment():
    layout = {"nodes": 16, "processes": 8, "shard": 16, "tensor": 8, "recompute": "full"}
    trained, run = training(preset_shape("llama-3-70b"), length=8192, **layout)
    moments, whole = training_bytes(trained, run, on_gpu=True), 4 * 70_553_706_496
    # Every process along `tensor` has embedding, head and norms.
    ends = 4 * (2 * 128_256 * 8192 + 161 * 8192)
    step = moments["step"]
    assert step["weights"] == pytest.approx((whole - ends) / 128 + ends / 16, rel=1e-3)
    assert step["optimizer"] == 2 * step["weights"]
    assert sum(step.values()) < 80e9 and moments["export"]["whole weight"] == 2 * 4 * 128_256 * 8192
    # A run is refused for no more than that.
    assert sum(certain_bytes(trained, run).values()) < sum(step.values())
    assert host_bytes(trained, run)["copies for checkpoints"] == 8 * 3 * step["weights"]


def test_a_shared_model_keeps_no_copies_of_its_layers_except_for_products_in_fp8():
    shape = preset_shape("llama-3-8b")

    def activations(precision, shard):
        return certain_bytes(*training(shape, precision=precision, processes=8, shard=shard))["activations"]

    assert activations("bf16", 1) - activations("bf16", 8) == bf16_copies(shape)
    assert activations("fp8", 1) == activations("fp8", 8) == activations("bf16", 1)
    assert activations("fp32", 1) == activations("fp32", 8) == 2 * activations("bf16", 8)


def test_a_step_takes_operations_over_peak_and_messages_that_leave_the_node():
    shape, gpu = preset_shape("llama-3-8b"), device_of("H100")
    trained, run = training(shape, passes=64, processes=8)
    flops = shape.training_flops_per_token(4096) * 4096 * 64
    one = step_seconds(trained, dataclasses.replace(run, nodes=8, processes=1), gpu)
    assert step_seconds(trained, run, gpu, mfu=0.5) == pytest.approx(flops / (989e12 * 0.5), rel=0.1)
    assert step_seconds(trained, run, gpu) < one  # whose gradients are summed between nodes
    again = dataclasses.replace(run, recompute="full")
    assert step_seconds(trained, again, gpu, mfu=0.01) > 1.3 * step_seconds(trained, run, gpu, mfu=0.01)


def test_peaks_are_found_by_the_names_of_drivers():
    assert peak_teraflops("NVIDIA H200") == 989.0 and peak_teraflops("NVIDIA A100-SXM4-80GB") == 312.0
    assert peak_teraflops("cpu") is None

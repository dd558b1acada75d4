"""The arithmetic of memory, time and layouts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from training.order.batch_settings import BatchPhase
from training.pretrain import forecast
from training.pretrain.degrees import Degrees
from training.pretrain.devices import device_of
from training.pretrain.division import divided
from training.pretrain.forecast import Layout, PlannedTraining, host_memory, layouts, memory, passes_of, peak, step_time
from training.pretrain.memory import needed_to_train
from training.pretrain.models.account import preset_shape
from training.pretrain.models.shape import ExpertLayers
from training.pretrain.settings import PretrainRecipe
from training.records import RecipeError
from training.run_settings import RunSettings

H100 = device_of("H100")
PHASE = BatchPhase(tokens=2**30, sequence_length=8192, global_batch_tokens=2**22)
RECIPE = PretrainRecipe(tokens=2**30, sequence_length=8192, global_batch_tokens=2**22)


def training(preset):
    return PlannedTraining(shape=preset_shape(preset), recipe=RECIPE, phase=PHASE)


def test_a_large_model_is_shared_at_every_moment():
    layout = Layout(nodes=16, processes=8, shard=16, tensor=8, micro_batch_tokens=8192, recompute="full")
    moments = memory(training("llama-3-70b"), layout, on_gpu=True)
    step, whole = moments["step"], 4 * 70_553_706_496
    # Every process along `tensor` has embedding, head and norms.
    ends = 4 * (2 * 128_256 * 8192 + 161 * 8192)
    assert step["weights"] == (whole - ends) // 128 + ends // 16 and step["optimizer"] == 2 * step["weights"]
    assert sum(step.values()) < H100.memory_bytes
    embedding = 4 * 128_256 * 8192  # the largest weight
    assert moments["export"]["whole weight"] == 2 * embedding < sum(step.values())
    assert peak(moments) == ("step", sum(step.values()))
    # Of a node's memory each of eight processes takes its share, for checkpoints. What all of them have they divide,
    # but not into less than the embedding.
    host = host_memory(training("llama-3-70b"), layout)
    assert host["copies for checkpoints"] == 8 * (3 * (whole - ends) // 128 + embedding // 16)
    assert host["file of weights"] == 5e9


def test_a_run_is_refused_only_for_what_a_process_holds():
    run = RunSettings(nodes=16, processes=8, shard=16, tensor=8, micro_batch_tokens=8192, recompute="full")
    needed = needed_to_train(
        preset_shape("llama-3-70b"), RECIPE, RECIPE.phases, run, processes=128, probabilities=False
    )
    assert needed["weights"] == 4 * 70_553_706_496 // 128 and sum(needed.values()) < H100.memory_bytes


def test_layouts_divide_the_batch_fit_the_device_and_begin_with_the_fastest():
    trained = training("300m")
    found = layouts(trained, Layout(processes=8), H100)
    assert len(found) > 20 and {fit.layout.world for fit in found} == {8}
    seconds = [fit.time.seconds for fit in found]
    assert seconds == sorted(seconds) and seconds[0] < seconds[-1]
    for fit in found:
        assert fit.peak_bytes <= 0.92 * H100.memory_bytes
        rows, passes = passes_of(trained, fit.layout)
        assert rows * passes * fit.layout.degrees.row_sets(8) >= PHASE.rows
    # A model of this size is copied to each GPU: sharing its weights sends more.
    assert found[0].layout.tensor == found[0].layout.pipeline == 1


def test_no_layout_is_offered_for_a_model_that_fits_nowhere():
    assert layouts(training("llama-3-70b"), Layout(processes=8), H100) == []


def test_memory_grows_with_rows_and_falls_with_recomputation_and_sharing():
    def activations(**given):
        layout = Layout(processes=8, **{"micro_batch_tokens": 8192, **given})
        return memory(training("llama-3-8b"), layout, on_gpu=True)["step"]

    one = activations()
    assert activations(micro_batch_tokens=16_384)["activations"] > 1.7 * one["activations"]
    assert activations(recompute="full")["activations"] < one["activations"] / 4
    assert activations(shard=8)["weights"] == one["weights"] // 8
    assert activations(shard=8)["gathered weights"] < one["weights"]


def test_a_shared_model_keeps_no_copies_of_its_layers_except_for_products_in_fp8():
    copies = 2 * 32 * (41_943_040 + 176_160_768)
    run = RunSettings(processes=8, shard=8, micro_batch_tokens=8192)

    def activations(precision, shard):
        recipe, config = replace(RECIPE, precision=precision), preset_shape("llama-3-8b")
        planned = PlannedTraining(shape=config, recipe=recipe, phase=PHASE)
        size = replace(run, shard=shard)
        of_a_step = memory(planned, Layout.of(size), on_gpu=True)["step"]["activations"]
        least = needed_to_train(config, recipe, recipe.phases, size, processes=8, probabilities=False)["activations"]
        assert least == of_a_step
        return of_a_step

    assert activations("bf16", 1) - activations("bf16", 8) == copies
    assert activations("fp8", 1) == activations("fp8", 8) == activations("bf16", 1)
    assert activations("fp32", 1) == activations("fp32", 8) == 2 * activations("bf16", 8)


def test_what_processes_along_tensor_and_context_all_have_is_not_divided():
    config, numbers = preset_shape("llama-3-8b"), 8192 * 32  # positions of a row, in all layers
    copies = 2 * 32 * (41_943_040 + 176_160_768)

    def step(recompute="none", **degrees):
        layout = Layout(processes=8, micro_batch_tokens=8192, recompute=recompute, **degrees)
        return memory(training("llama-3-8b"), layout, on_gpu=True)["step"]

    one = step()["activations"] - copies
    # The copies of weights are divided by `tensor`, and not by `context`, which joins keys and values of 1,024 numbers.
    assert step(context=8)["activations"] == one // 8 + copies + 2 * (2048 * numbers - 1024 * numbers // 8)
    assert step(tensor=8)["activations"] == one // 8 + copies // 8 + 2 * 2 * 4096 * numbers
    assert step("full", tensor=8)["activations"] < step(tensor=8)["activations"] / 8
    ends = 4 * (2 * 128_256 * 4096 + 65 * 4096)
    assert step(tensor=8)["weights"] == (4 * config.parameter_count - ends) // 8 + ends


def test_gradients_of_replicas_are_summed_in_messages_of_bounded_size():
    small, large = (divided(preset_shape(name), Degrees(context=8)) for name in ("10m", "llama-3-8b"))
    layout = Layout(processes=8, context=8)
    assert forecast._message_bytes(layout, small) == 4 * preset_shape("10m").parameter_count
    assert forecast._message_bytes(layout, large) == 4 * 2**26
    # Along `tensor` only what is not divided is summed; without other processes nothing is.
    norms = 4 * 65 * 4096  # embedding and head are larger than a message
    of_a_tensor = divided(preset_shape("llama-3-8b"), Degrees(tensor=8))
    assert forecast._message_bytes(Layout(processes=8, tensor=8), of_a_tensor) == norms
    assert forecast._message_bytes(Layout(), divided(preset_shape("10m"), Degrees())) == 0


def test_experts_that_processes_do_not_divide_are_each_divided():
    experts = replace(preset_shape("300m"), experts=ExpertLayers(count=4, active=2, width=1024))
    planned = replace(training("300m"), shape=experts)

    def weights(**changes):
        layout = Layout(nodes=2, processes=8, shard=16, micro_batch_tokens=8192)
        one = replace(planned, shape=replace(experts, **changes))
        return memory(one, layout, on_gpu=True)["step"]["weights"], one.shape.parameter_count

    held, whole = weights()
    assert held == pytest.approx(4 * whole / 16, rel=1e-3)
    held, whole = weights(experts=replace(experts.experts, width=1001))  # 16 divides the other side
    assert held == pytest.approx(4 * whole / 16, rel=1e-3)
    held, whole = weights(experts=replace(experts.experts, width=1001), width=1000)  # each process has one expert whole
    assert held > 3 * 4 * whole / 16


def test_a_step_takes_longer_where_messages_leave_the_node():
    inside = step_time(training("llama-3-8b"), Layout(processes=8, shard=8, micro_batch_tokens=8192), H100)
    layout = Layout(nodes=8, processes=1, shard=8, micro_batch_tokens=8192)
    across = step_time(training("llama-3-8b"), layout, H100)
    assert across.hidden == pytest.approx(9 * inside.hidden) and across.compute == inside.compute
    twice = step_time(training("llama-3-8b"), Layout(nodes=2, processes=8, shard=8, micro_batch_tokens=8192), H100)
    assert twice.compute == pytest.approx(inside.compute / 2)
    # With `shard`, replicas are summed while the last backward pass computes.
    assert twice.exposed == inside.exposed == 0.0
    assert step_time(training("llama-3-8b"), Layout(nodes=2, processes=8, micro_batch_tokens=8192), H100).exposed > 0


def test_a_lower_zero_stage_sends_less_and_holds_more():
    def layout(stage):
        return Layout(processes=8, shard=8, micro_batch_tokens=8192, zero_stage=stage)

    found = [step_time(training("llama-3-8b"), layout(stage), H100).hidden for stage in (3, 2, 1)]
    passes = passes_of(training("llama-3-8b"), layout(3))[1]
    assert [one / found[2] for one in found] == pytest.approx([3 * passes / 2, (1 + passes) / 2, 1])
    sums = [sum(memory(training("llama-3-8b"), layout(stage), on_gpu=True)["step"].values()) for stage in (3, 2, 1)]
    assert sums == sorted(sums)


def test_compute_is_operations_over_peak_and_utilization():
    layout = Layout(processes=8, micro_batch_tokens=8192)
    flops = preset_shape("llama-3-8b").training_flops_per_token(8192) * 2**22
    made = step_time(training("llama-3-8b"), layout, H100, mfu=0.5)
    assert made.compute == pytest.approx(flops / (8 * 989e12 * 0.5))
    recomputed = step_time(training("llama-3-8b"), replace(layout, recompute="full"), H100, mfu=0.5)
    assert recomputed.compute == pytest.approx(4 / 3 * made.compute)


def test_an_unknown_gpu_is_refused_with_the_known_ones():
    with pytest.raises(RecipeError, match=r"gpu='H10': not known; did you mean `H100`. there are A100, .*H100"):
        device_of("H10")

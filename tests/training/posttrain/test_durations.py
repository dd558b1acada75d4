"""The arithmetic of time on GPUs, with figures by hand from published shapes and data sheets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from training.posttrain.durations import (
    Drawing,
    Gpus,
    Read,
    TuningWork,
    time_of_answering,
    time_of_answers,
    time_of_reading,
    time_of_tuning,
)
from training.pretrain.devices import device_of
from training.pretrain.models.account import preset_shape
from training.pretrain.models.shape import ModelConfig

SHAPE = preset_shape("llama-3-8b")
# Of 8,030,261,248 weights, 128,256 x 4,096 are looked up, and 65 norms of 4,096 are no matrices.
PARAMETERS, HEAD = 8_030_261_248, 525_336_576
MATRICES = PARAMETERS - HEAD - 65 * 4096
TOKENS = 64 * 1000
# A query of 32 heads of 128 meets half a row of keys, and as many values, in each of 32 layers.
FORWARD = TOKENS * (2 * MATRICES + 2 * 2 * 4096 * 500 * 32)
READ = Read(shape=SHAPE, number=64, length=1000)
H100 = Gpus(device=device_of("H100"), mfu=0.5)
SECOND = 989e12 * 0.5  # operations of bf16 by the data sheet
MEMORY = 3.35e12 * 2 / 3
NEAR = pytest.approx


def test_a_backward_pass_is_two_forward_passes_and_the_head_is_computed_twice():
    work = TuningWork(read=READ, steps=4)
    again = 2 * TOKENS * HEAD
    assert work.training_flops == NEAR(3 * FORWARD + again)
    assert replace(work, recomputes=True).training_flops == NEAR(4 * FORWARD)
    judge = replace(READ, is_reward=True)
    assert TuningWork(read=judge, steps=4).training_flops == NEAR(3 * (FORWARD - again))
    # Below adapters no gradients of weights are computed.
    adapted = replace(work, adapters=10**7)
    assert adapted.training_flops == NEAR(3 * FORWARD + again - TOKENS * (2 * MATRICES - 6 * 10**7))


def test_steps_take_compute_and_the_update_what_it_moves():
    parts = time_of_tuning(TuningWork(read=READ, steps=4, before=1, in_steps=1), H100)
    assert parts["steps"] == NEAR((3 * FORWARD + 2 * TOKENS * HEAD) / SECOND)
    assert parts["passes without gradients"] == NEAR(2 * FORWARD / SECOND)
    assert parts["update"] == NEAR(4 * 40 * PARAMETERS / MEMORY)
    in_fp32 = time_of_tuning(TuningWork(read=READ, steps=4, is_fp32=True), H100)
    assert in_fp32["steps"] == NEAR(parts["steps"] * 989 / 67)
    # Each process reads the sample by itself, in fp32.
    eight = replace(H100, processes=8, on_node=8)
    checked = TuningWork(read=READ, steps=4, checks=(READ,))
    assert time_of_tuning(checked, eight)["checks"] == NEAR(FORWARD / (67e12 * 0.5))
    assert checked.flops(8) == NEAR(3 * FORWARD + 2 * TOKENS * HEAD + 8 * FORWARD)


def test_a_shared_model_is_gathered_in_every_pass_beside_compute():
    shared = replace(H100, processes=16, on_node=8, shard=16)
    work = TuningWork(read=READ, steps=4, passes=2)
    parts = time_of_tuning(work, shared)
    # Two gathers and a sum of gradients of 15 sixteenths in fp32, at 50 GB/s between nodes.
    assert parts["steps"] == NEAR(4 * 2 * 3 * 4 * PARAMETERS * 15 / 16 / 50e9)
    assert parts["update"] == NEAR(4 * 40 * PARAMETERS / 16 / MEMORY)
    near = time_of_tuning(work, replace(shared, processes=8, shard=8))
    assert near["steps"] == NEAR(4 * 2 * 3 * 4 * PARAMETERS * 7 / 8 / 450e9)
    whole = time_of_tuning(work, replace(shared, shard=1))
    assert whole["steps"] == NEAR(4 * 2 * 4 * PARAMETERS * 15 / 16 / 50e9)  # once a step
    long = TuningWork(read=replace(READ, number=64_000), steps=4, passes=2)
    assert time_of_tuning(long, shared)["steps"] == NEAR(long.training_flops / 16 / SECOND)


def test_a_drawn_token_reads_weights_keys_and_values():
    drawn = Drawing(shape=SHAPE, number=8, prompt=400, new=201)
    weights = PARAMETERS - HEAD
    # 8 keys and values of 128 in fp32, in 32 layers; read, and copied when one is joined to them.
    keys = 3 * 8 * (400 + 201 / 2) * 32 * 2 * 8 * 128 * 4
    prompts = 8 * 400 * (2 * MATRICES + 2 * 2 * 4096 * 200 * 32) / SECOND
    seconds = prompts + 200 * (2 * weights + keys) / MEMORY
    assert 8 * weights / MEMORY < prompts  # a copy in bf16 is made in the first pass
    assert time_of_answers(drawn, H100) == NEAR(seconds)
    assert time_of_answers(replace(drawn, is_fp32=True), H100) > 1.5 * seconds
    shared = replace(H100, processes=8, on_node=8, shard=8)
    gathered = 4 * PARAMETERS * 7 / 8 / 450e9
    copied = 8 * weights / MEMORY
    assert gathered > copied + keys / MEMORY
    assert time_of_answers(drawn, shared) == NEAR(prompts + 200 * gathered)
    many = replace(drawn, number=4096)  # so many that products decide, and not the memory
    passes = 200 * 4096 * (2 * MATRICES + 4 * 4096 * (400 + 100.5) * 32) / SECOND
    assert many.flops == NEAR(4096 / 8 * drawn.prompts.forward + passes * SECOND)


def test_weights_that_stay_gathered_are_sent_once_for_all_answers():
    drawn, shared = Drawing(shape=SHAPE, number=8, prompt=400, new=201), replace(H100, processes=8, on_node=8, shard=8)
    whole, sent = time_of_answers(drawn, H100), 4 * PARAMETERS * 7 / 8 / 450e9
    gathered = replace(shared, gathers=True)
    assert time_of_answers(drawn, gathered) == NEAR(whole + sent / 2)  # in bf16
    in_fp32 = replace(drawn, is_fp32=True)
    assert time_of_answers(in_fp32, gathered) == NEAR(time_of_answers(in_fp32, H100) + sent)
    assert time_of_answers(drawn, shared) > 5 * time_of_answers(drawn, gathered)
    # Batches of scoring that are answered together gather them once too.
    more = replace(in_fp32, number=8 * 8 * 3)
    of_a_batch = time_of_answers(in_fp32, H100)
    assert time_of_answering(more, gathered, batch_size=8) == NEAR(3 * of_a_batch + sent)


def test_a_step_of_grpo_also_draws_and_scores():
    drawn = Drawing(shape=SHAPE, number=64, prompt=900, new=100)
    work = TuningWork(read=READ, steps=1, in_steps=1, drawn=drawn, has_judge=True)
    place = replace(H100, processes=8, on_node=8)
    parts = time_of_tuning(work, place)
    assert parts["answers"] == time_of_answers(replace(drawn, number=8), place)
    scored = FORWARD - 2 * TOKENS * HEAD  # without the head
    assert parts["rewards"] == NEAR(scored / 8 / (67e12 * 0.5))
    assert work.flops(8) == NEAR(work.training_flops + FORWARD + drawn.flops + scored)


def test_scoring_is_in_fp32_and_takes_no_less_than_reading_the_weights():
    # 64 rows in batches of 8 are 8 batches, of which one of 3 processes has 3.
    place = replace(H100, processes=3, on_node=3)
    assert time_of_reading(READ, place, batch_size=8) == NEAR(FORWARD * 24 / 64 / (67e12 * 0.5))
    short = replace(READ, length=1)
    assert time_of_reading(short, place, batch_size=8) == NEAR(3 * 4 * PARAMETERS / MEMORY)
    asked = Drawing(shape=SHAPE, number=64, prompt=100, new=10, is_fp32=True)
    of_a_batch = time_of_answers(replace(asked, number=8), place)
    assert time_of_answering(asked, place, batch_size=8) == NEAR(3 * of_a_batch)


def test_one_h200_took_what_is_predicted_for_dpo_and_twice_as_long_for_sft():
    """The figures in docs/plan.md: one step of DPO, and the median of five steps of SFT."""
    lines = Path(__file__, "../../../../benchmarks/gpu.jsonl").resolve().read_text().splitlines()
    told = [found for found in map(json.loads, lines) if found.get("part") == "gpu_tuning"]
    own = {part: sides["own"] for part, sides in told[-1]["found"].items()}
    shape = ModelConfig(
        vocab_size=8192,
        width=2048,
        layers=16,
        heads=32,
        kv_heads=8,
        mlp_width=8192,
        max_length=2048,
        tied_embeddings=True,
    )
    h200, found = Gpus(device=device_of("H200")), {}
    for part, rows, counted in (("sft", 16, 5), ("dpo", 32, 1)):
        read = Read(shape=shape, number=rows, length=own[part]["tokens"] / counted / rows)
        predicted = sum(time_of_tuning(TuningWork(read=read, steps=1), h200).values())
        found[part] = predicted / own[part]["median_step_seconds"]
    assert found == {"sft": pytest.approx(0.50, abs=0.01), "dpo": pytest.approx(1.04, abs=0.01)}

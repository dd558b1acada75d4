"""Alignment by DPO, IPO, GRPO and RLOO on toy data."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from evaluation.held_out import before_and_after, unique_prompts
from tests.training.posttrain import tiny
from training.job import Work
from training.parts import load_part
from training.posttrain.align.method import method_of
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.models import load_model
from training.posttrain.sorting import read_jsonl
from training.progress import Progress, read_metrics
from training.records import RecipeError, read_record

DPO = {
    "method": "dpo",
    "epochs": 6,
    "batch_size": 8,
    "learning_rate": 3e-3,
    "max_length": 96,
    "precision": "fp32",
    "max_new_tokens": 24,
}
RL = {
    "method": "grpo",
    "max_steps": 2,
    "batch_size": 8,
    "num_generations": 4,
    "learning_rate": 1e-3,
    "max_length": 96,
    "precision": "fp32",
    "max_new_tokens": 8,
}


def inputs(chain, method):
    """What the method reads: the reward model only if it learns from samples."""
    samples = method_of(method).learns_from == "samples"
    return tuple(tiny.made(chain, asset) for asset in ("sft_model", "preference_data", "reward_model")[: 2 + samples])


def align(chain, output, settings, *more, **options):
    return tiny.run("align", output, {"align": settings}, (*inputs(chain, settings["method"]), *more), **options)


def prompt_data(tmp_path, rows):
    """The prompts of a file as the stage `prompts` writes them."""
    path = tiny.write_rows(tmp_path / "prompts.jsonl", rows)
    tiny.run("prompts", tmp_path / "prompt_data", {"align": {"prompts": path}})
    return tiny.made(tmp_path, "prompt_data")


def judged(chain, aligned, settings):
    """Rewards and divergence on the held-out prompts, as the stage `judge` measures them."""
    sft, reward = (chain / asset / "model" for asset in ("sft_model", "reward_model"))
    rows = read_jsonl(chain / "preference_data" / "held_out.jsonl")
    recipe = read_record(AlignRecipe, settings, where="align")
    return before_and_after(sft, aligned / "model", reward, unique_prompts(rows), recipe)


def alignment(chain, tmp_path, settings):
    """What a method is given."""
    from training.posttrain.align.alignment import Alignment
    from training.posttrain.chat import Chat
    from training.posttrain.models import load_tokenizer
    from training.posttrain.preferences.pairs import read_pairs

    folder = chain / "sft_model" / "model"
    chat = Chat.of(folder)
    return Alignment(
        job=tiny.job("align", tmp_path / "out", {"align": settings}, inputs(chain, settings["method"])),
        work=Work(path=tmp_path, scratch=tmp_path / "scratch", progress=Progress(tmp_path, enabled=False)),
        recipe=read_record(AlignRecipe, settings, where="align"),
        chat=chat,
        tokenizer=load_tokenizer(folder, chat),
        pairs=read_pairs(tiny.made(chain, "preference_data"), chat, max_length=settings["max_length"], where="align"),
    )


def test_dpo_starts_at_ln_2_and_moves_towards_the_preferred(chain, tmp_path):
    record = align(chain, tmp_path / "aligned", DPO)
    gate = tiny.gate(record, "dpo_starts_at_ln2")
    assert gate["passed"]
    assert gate["evidence"]["loss"] == pytest.approx(math.log(2), abs=1e-4)
    logged = read_metrics(tmp_path / "aligned" / "metrics.jsonl")
    assert logged[0]["loss"] == pytest.approx(math.log(2), abs=1e-3)
    metrics = record["metrics"]
    assert metrics["loss_last"] < math.log(2)
    assert metrics["implicit_reward_accuracy_last"] > 0.8
    rewards = judged(chain, tmp_path / "aligned", DPO)
    assert rewards["aligned_held_out_learned_reward"] > rewards["sft_held_out_learned_reward"]
    assert rewards["kl_from_sft"] > 0
    assert {Path(entry["path"]).suffix for entry in record["files"]} == {".safetensors", ".json", ".jinja"}


def test_ipo_starts_at_its_own_loss_and_draws_the_margin_to_its_target(chain, tmp_path):
    record = align(chain, tmp_path / "aligned", {**DPO, "method": "ipo", "beta": 0.5})
    gate = tiny.gate(record, "ipo_starts_at_1_over_4_beta_squared")
    assert gate["passed"] and gate["evidence"]["loss"] == pytest.approx(1.0, abs=1e-4)
    logged = read_metrics(tmp_path / "aligned" / "metrics.jsonl")
    assert logged[0]["loss"] == pytest.approx(1.0, abs=1e-3)
    metrics = record["metrics"]
    assert metrics["loss_last"] < 0.2 and metrics["implicit_reward_accuracy_last"] > 0.8
    rewards = judged(chain, tmp_path / "aligned", DPO)
    assert rewards["aligned_held_out_learned_reward"] > rewards["sft_held_out_learned_reward"]
    assert record["notes"]["method"] == "ipo"


@pytest.mark.parametrize("method", ["dpo", "ipo"])
def test_another_reference_fails_the_gate_on_the_start(chain, tmp_path, method):
    from training.posttrain.align.paired import loss_at_start, pairs_trainer

    given = alignment(chain, tmp_path, {**DPO, "method": method, "beta": 0.1})
    module = load_part("training.posttrain.methods.*", method)
    trainer = pairs_trainer(given, module.METHOD.decides)
    assert module.start_gate(*loss_at_start(trainer), 0.1).passed
    with torch.no_grad():
        trainer.model.model.layers[0].mlp.down_proj.weight.mul_(2.0)
    assert not module.start_gate(*loss_at_start(trainer), 0.1).passed


def test_dpo_with_adapters_starts_at_ln_2_and_merges(chain, tmp_path):
    record = align(chain, tmp_path / "aligned", {**DPO, "epochs": 1, "peft": {"r": 4}, "precision": "bf16"})
    assert tiny.gate(record, "dpo_starts_at_ln2")["passed"]
    assert tiny.gate(record, "merged_equals_adapter")["passed"]


@pytest.mark.parametrize("method", ["grpo", "rloo"])
def test_rl_takes_its_steps_and_reports_rewards_length_and_divergence(chain, tmp_path, method):
    record = align(chain, tmp_path / "aligned", {**RL, "method": method, "verifiable_reward_weight": 0.5})
    metrics = record["metrics"]
    assert metrics["steps"] == 2
    for name in (
        "reward_last",
        "learned_reward_in_deviations_last",
        "right_answers_last",
        "kl_trained_last",
    ):
        assert math.isfinite(metrics[name])
    assert 0 < metrics["answer_tokens_trained_last"] <= 8
    assert record["notes"]["method"] == method
    before, after = (
        load_model(folder / "model").state_dict() for folder in (chain / "sft_model", tmp_path / "aligned")
    )
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_rl_leaves_out_held_out_prompts(chain, tmp_path):
    prompts = prompt_data(tmp_path, tiny.preference_rows())
    record = align(chain, tmp_path / "aligned", {**RL, "max_steps": 1}, prompts)
    held_out = len((chain / "preference_data" / "held_out.jsonl").read_text().splitlines())
    assert record["counts"]["dropped"] == {"held_out": held_out}
    assert record["counts"]["in"] == 48


def test_settings_without_effect_are_refused(chain, tmp_path):
    for name, value in (("prompts", "kitchen://alignment"), ("max_steps", 3), ("verifiable_reward_weight", 0.5)):
        with pytest.raises(RecipeError, match=f"align.{name}=.* has no effect with method dpo"):
            align(chain, tmp_path / "out", {**DPO, name: value})
    with pytest.raises(RecipeError, match=r"align\.trl: loss_type .* ln 2"):
        align(chain, tmp_path / "out", {**DPO, "trl": {"loss_type": ["hinge"]}})
    with pytest.raises(RecipeError, match="not a multiple of num_generations=3"):
        align(chain, tmp_path / "out", {**RL, "num_generations": 3})


def test_answers_without_room_for_a_prompt_are_refused_before_training(chain, tmp_path):
    with pytest.raises(RecipeError, match="max_new_tokens=256 leaves no room for a prompt in the model's 256"):
        align(chain, tmp_path / "out", {**DPO, "max_new_tokens": 256})


def test_a_verifiable_reward_without_answers_is_refused(chain, tmp_path):
    prompts = prompt_data(tmp_path, [{"prompt": "What?"}])
    with pytest.raises(RecipeError, match="no prompt has a field `answer`"):
        align(chain, tmp_path / "out", {**RL, "verifiable_reward_weight": 0.5}, prompts)


@pytest.mark.parametrize(
    "settings",
    [{**DPO, "epochs": 1}, {**DPO, "method": "ipo", "epochs": 1}, {**RL, "max_steps": 4}],
    ids=["dpo", "ipo", "grpo"],
)
def test_a_killed_job_gives_the_bytes_of_one_that_was_not(chain, tmp_path, killed_at, settings):
    whole = align(chain, tmp_path / "whole", settings)
    with killed_at(3):
        align(chain, tmp_path / "killed", settings, checkpoint_seconds=1e-6)
    again = align(chain, tmp_path / "killed", settings)
    assert again["digest"] == whole["digest"]

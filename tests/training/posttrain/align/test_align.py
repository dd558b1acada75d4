"""Alignment by DPO, IPO, GRPO and RLOO on toy data."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest
import torch

from evaluation.exams.held_out import before_and_after, unique_prompts
from tests.outside import EXAMPLES
from tests.training.posttrain import tiny
from tests.training.posttrain.conftest import REWARD
from training.contract.job import DataError, Work
from training.contract.progress import Progress, read_metrics
from training.contract.records import RecipeError, read_record
from training.posttrain.align.losses import OF_PAIRS
from training.posttrain.align.method import method_of
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.rows.sorting import read_jsonl
from training.posttrain.trainer.models import load_model

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
    from training.generate.turns import Chat
    from training.posttrain.align.alignment import Alignment
    from training.posttrain.preferences.pairs import read_pairs
    from training.posttrain.trainer.models import load_tokenizer

    folder = chain / "sft_model" / "model"
    chat = Chat.of(folder)
    return Alignment(
        job=tiny.job("align", tmp_path / "out", {"align": settings}, inputs(chain, settings["method"])),
        work=Work(path=tmp_path, scratch=tmp_path / "scratch", progress=Progress(tmp_path, enabled=False)),
        recipe=read_record(AlignRecipe, settings, where="align"),
        chat=chat,
        tokenizer=load_tokenizer(folder, chat),
        pairs=read_pairs(tiny.made(chain, "preference_data"), chat, max_length=settings["max_length"], where="align"),
        sft_model=folder,
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


def test_orpo_starts_at_the_loss_of_the_sft_model_and_raises_the_odds_of_the_preferred(chain, tmp_path):
    settings = {**DPO, "method": "orpo", "beta": 0.5, "epochs": 3}
    record = align(chain, tmp_path / "aligned", settings)
    gate = tiny.gate(record, "starts_at_known_loss")
    assert gate["passed"] and gate["evidence"]["losses"] == "orpo" and gate["evidence"]["expected"] > 0.1
    metrics = record["metrics"]
    assert metrics["loss_last"] < metrics["start_loss"] and metrics["implicit_reward_accuracy_last"] > 0.8
    rewards = judged(chain, tmp_path / "aligned", DPO)
    assert rewards["aligned_held_out_learned_reward"] > rewards["sft_held_out_learned_reward"]
    with pytest.raises(RecipeError, match=r"align\.trl: loss_type .* orpo"):
        read_record(AlignRecipe, {"method": "orpo", "trl": {"loss_type": "hinge"}}, where="align")


def test_the_odds_ratio_loss_is_that_of_the_paper():
    from training.posttrain.align.odds import odds_ratio_loss

    chosen, rejected = 0.6, 0.2
    log_odds = math.log((chosen / (1 - chosen)) / (rejected / (1 - rejected)))
    expected = -math.log(chosen) + 0.1 * math.log(1 + math.exp(-log_odds))
    given = torch.tensor([chosen, chosen]).log(), torch.tensor([rejected, rejected]).log()
    assert odds_ratio_loss(*given, 0.1).item() == pytest.approx(expected, rel=1e-6)


def test_trl_computes_each_loss_at_its_start(chain, tmp_path):
    """The gates expect what TRL's own trainer gives before the first step, and notice another reference."""
    from training.posttrain.align.initial_loss import start_of
    from training.posttrain.align.paired import pairs_trainer
    from training.posttrain.methods import dpo, ipo

    trainer = pairs_trainer(alignment(chain, tmp_path, {**DPO, "beta": 0.4}), {"label_smoothing": 0.2})
    trainer.loss_weights = [1.0]

    def gate_of(name: str):
        trainer.loss_types = [name]
        if name == "ipo":
            return ipo.start_gate(start_of(trainer), AlignRecipe(method="ipo", beta=0.4))
        trl = {"loss_type": name, "label_smoothing": 0.2}
        return dpo.start_gate(start_of(trainer), AlignRecipe(beta=0.4, trl=trl))

    gates = {name: gate_of(name) for name in OF_PAIRS}
    assert {name for name, gate in gates.items() if not gate.passed} == set(), gates
    assert {gates[name].name for name in OF_PAIRS} == {
        gate for name in ("dpo", "ipo") for gate in method_of(name).start_gates
    }
    with torch.no_grad():
        trainer.model.model.layers[0].mlp.down_proj.weight.mul_(2.0)
    assert not any(gate_of(name).passed for name in OF_PAIRS)


def test_the_start_is_the_same_in_several_passes(chain, tmp_path, monkeypatch):
    from training.posttrain.align.initial_loss import reference_gate, start_of
    from training.posttrain.align.paired import pairs_trainer

    trainer = pairs_trainer(alignment(chain, tmp_path, {**DPO, "beta": 0.4}), {})
    with torch.no_grad():
        trainer.model.model.layers[0].mlp.down_proj.weight.mul_(2.0)  # so that rows have different losses
    whole = start_of(trainer)
    monkeypatch.setattr("training.generate.passes.pass_rows.PASS_TOKENS", 400)
    parts = start_of(trainer)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5) and parts.rows == whole.rows
    assert abs(parts.rewards["chosen"]) > abs(whole.rewards["chosen"]) > 1e-3  # the pass that is furthest from 0
    with torch.no_grad():
        trainer.model.model.layers[0].mlp.down_proj.weight.fill_(math.nan)
    assert not reference_gate(start_of(trainer)).passed


def test_another_loss_on_pairs_has_a_gate_of_its_own(chain, tmp_path):
    trl = {"loss_type": ["hinge", "sft"], "loss_weights": [1.0, 0.1]}
    record = align(chain, tmp_path / "aligned", {**DPO, "epochs": 2, "trl": trl})
    assert tiny.gate(record, "starts_at_reference")["passed"]
    assert record["metrics"]["loss_last"] < record["metrics"]["loss_first"]


def test_kto_learns_from_single_answers_and_starts_at_a_half(chain, tmp_path):
    rows = [{"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
            for row in tiny.preference_rows(24) for side in ("chosen", "rejected")]  # fmt: skip
    pairs = tiny.write_rows(tmp_path / "pairs.jsonl", tiny.preference_rows())
    single = tiny.write_rows(
        tmp_path / "single.jsonl", [*rows[:30], {"prompt": "Who?", "completion": "I.", "label": "yes"}]
    )
    data = [{"uri": pairs, "format": "chosen_rejected"}, {"uri": single, "format": "unpaired"}]
    made = tiny.run(
        "preferences", tmp_path / "preference_data", {"preferences": {"data": data, "held_out_fraction": 0.2}}
    )
    assert made["counts"]["quarantined"] == {"label_is_not_true_or_false": 1}
    assert made["counts"]["in"] == 48 + 31
    settings = {**DPO, "method": "kto", "epochs": 3, "trl": {"undesirable_weight": 2.0}}
    inputs = tiny.made(chain, "sft_model"), tiny.made(tmp_path, "preference_data")
    record = tiny.run("align", tmp_path / "aligned", {"align": settings}, inputs)
    gate = tiny.gate(record, "starts_at_known_loss")
    assert gate["passed"] and 0.5 < gate["evidence"]["expected"] < 1.0
    assert record["counts"] == {"in": 78, "kept": 78, "dropped": {}, "quarantined": {}}
    assert record["metrics"]["loss_last"] < record["metrics"]["loss_first"]
    rewards = judged(chain, tmp_path / "aligned", DPO)
    assert rewards["aligned_held_out_learned_reward"] > rewards["sft_held_out_learned_reward"]
    # The reward model learns from the pairs and counts the others.
    reward = tiny.run("reward", tmp_path / "reward_model", {"reward": {**REWARD, "epochs": 0.1}}, inputs)
    assert reward["counts"]["dropped"] == {"unpaired": 30} and reward["counts"]["in"] == 78
    assert sum(one["rows"] for one in reward["notes"]["rows_read"]) == 4  # a tenth of the pairs for training
    rows_trained = len((tmp_path / "preference_data" / "train.jsonl").read_text("utf-8").splitlines())
    assert sum(one["rows"] for one in record["notes"]["rows_read"]) == rows_trained
    assert len(record["notes"]["rows_read"]) == 2  # sources
    with pytest.raises(RecipeError, match=r"micro_batch_tokens .* 2 of the 8 .* apo_zero_unpaired"):
        tiny.run("align", tmp_path / "cut", {"align": settings}, inputs, micro_batch_tokens=192)


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
    (read,) = record["notes"]["rows_read"]
    assert read["times"] == 2 * RL["batch_size"] // RL["num_generations"] and read["rows"] <= read["times"]
    assert record["notes"]["method"] == method
    before, after = (
        load_model(folder / "model").state_dict() for folder in (chain / "sft_model", tmp_path / "aligned")
    )
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("method", ["grpo", "rloo"])
def test_the_policy_its_reference_and_the_reward_model_are_opened_in_the_profile_s_shares(
    chain, tmp_path, monkeypatch, method
):
    opened = tiny.shares_opened(monkeypatch)
    library = importlib.import_module(f"trl.trainer.{method}_trainer")
    monkeypatch.setattr(library, "create_model_from_path", library.create_model_from_path)  # the stage replaces it
    align(chain, tmp_path / "shared", {**RL, "method": method, "max_steps": 1}, shard=2)
    assert opened == [2, 2, 2]


def test_no_two_answers_of_a_training_are_drawn_from_the_same_random_numbers(chain, tmp_path, monkeypatch):
    """Each of a step, of the parts of its batch, of two steps, and of two seeds has its own."""
    from training.posttrain.align.sampling import seeded_sampling as drawn

    used, given = [], drawn.Drawn.__init__

    def noted(self, args, prompts, seeds, **more):
        used.append(list(seeds))
        given(self, args, prompts, seeds, **more)

    monkeypatch.setattr(drawn.Drawn, "__init__", noted)
    settings = {**RL, "rewards": {"length": 1.0}, "beta": 0.0, "trl": {"steps_per_generation": 1}}
    for seed in (0, 1):
        align(chain, tmp_path / str(seed), {**settings, "seed": seed}, micro_batch_tokens=4 * RL["max_length"])
    # Two steps of two parts with four answers each, of either seed.
    assert [len(seeds) for seeds in used] == [4] * 8
    assert len({seed for seeds in used for seed in seeds}) == 32


def test_a_method_from_outside_trains_and_is_told_when_it_fails(chain, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    given = {**DPO, "epochs": 2, "method": "mine", "parts": {"mine": {"from": "anchored:method", "likelihood": 0.5}}}
    record = tiny.run("align", tmp_path / "aligned", {"align": given}, inputs(chain, "dpo"))
    assert tiny.gate(record, "starts_at_reference")["passed"] and record["notes"]["method"] == "mine"
    assert record["metrics"]["loss_last"] < record["metrics"]["loss_first"]
    monkeypatch.syspath_prepend(tmp_path)
    for number, (body, said) in enumerate(
        (
            ("raise KeyError('lost')", r"preference method mine failed: KeyError: 'lost'"),
            ("return given", r"preference method mine returned Alignment.* it must be a Trained whose counts balance"),
        )
    ):
        text = (
            (EXAMPLES / "anchored.py")
            .read_text()
            .replace("    from training.posttrain.align.p", f"    {body}\n    from x")
        )
        (tmp_path / f"failing_{number}.py").write_text(text)
        broken = {**given, "parts": {"mine": {"from": f"failing_{number}:method"}}}
        with pytest.raises(DataError, match=said):
            tiny.run("align", tmp_path / f"out{number}", {"align": broken}, inputs(chain, "dpo"))


def test_rewards_of_parts_add_up(chain, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    rewards = {"learned": 0.5, "right_answer": 0.2, "length": 0.1, "polite": 0.2}
    given = {**RL, "rewards": rewards, "parts": {"polite": {"from": "polite:reward"}, "length": {"most_words": 4}}}
    record = align(chain, tmp_path / "aligned", given)
    metrics = record["metrics"]
    assert 0 <= metrics["reward_length_last"] <= 1 and 0 <= metrics["reward_polite_last"] <= 1
    assert math.isfinite(metrics["learned_reward_in_deviations_last"]) and metrics["steps"] == 2


def test_rl_leaves_out_held_out_prompts(chain, tmp_path):
    prompts = prompt_data(tmp_path, tiny.preference_rows())
    record = align(chain, tmp_path / "aligned", {**RL, "max_steps": 1}, prompts)
    held_out = len((chain / "preference_data" / "held_out.jsonl").read_text().splitlines())
    assert record["counts"]["dropped"] == {"held_out": held_out}
    assert record["counts"]["in"] == 48


def test_settings_without_effect_are_refused(chain, tmp_path):
    for name, value in (("prompts", "kitchen://alignment"), ("max_steps", 3), ("verifiable_reward_weight", 0.5)):
        with pytest.raises(RecipeError, match=f"align.{name}=.* dpo"):
            align(chain, tmp_path / "out", {**DPO, name: value})
    with pytest.raises(RecipeError, match=r"align\.trl: loss_type .* 1/\(4β²\)"):
        align(chain, tmp_path / "out", {**DPO, "method": "ipo", "trl": {"loss_type": ["hinge"]}})
    with pytest.raises(RecipeError, match="num_generations=3"):
        align(chain, tmp_path / "out", {**RL, "num_generations": 3})


def test_answers_without_room_for_a_prompt_are_refused_before_training(chain, tmp_path):
    with pytest.raises(RecipeError, match="max_new_tokens=256"):
        align(chain, tmp_path / "out", {**DPO, "max_new_tokens": 256})


def test_a_verifiable_reward_without_answers_is_refused(chain, tmp_path):
    prompts = prompt_data(tmp_path, [{"prompt": "What?"}])
    with pytest.raises(DataError, match="`answer`"):
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

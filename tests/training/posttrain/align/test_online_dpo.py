"""Online DPO: its loss by hand and in TRL's own trainer, its pairs, and a training on the toy chain."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from tests.training.posttrain import tiny
from tests.training.posttrain.align.test_align import RL, align
from training.contract.records import RecipeError
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.methods.online_dpo import OnlinePairsTrainer, pairs_loss

ONLINE = {**RL, "method": "online_dpo", "num_generations": 2}


def test_the_loss_of_pairs_is_that_computed_by_hand():
    """The second pair's better answer is its second one; the third has none, and teaches nothing."""
    ratios = torch.tensor([0.5, -0.5, 0.2, 1.0, 3.0, -2.0], requires_grad=True)
    loss, right = pairs_loss(ratios, torch.tensor([1.0, 0.0, -1.0, 2.0, 0.7, 0.7]), 0.5)
    by_hand = (math.log(1 + math.exp(-0.5 * 1.0)) + math.log(1 + math.exp(-0.5 * 0.8))) / 3
    assert loss.item() == pytest.approx(by_hand) and right.item() == 1.0
    loss.backward()
    assert ratios.grad is not None and (ratios.grad.sign() == torch.tensor([-1, 1, 1, -1, 0, 0])).all()
    assert math.isnan(pairs_loss(torch.zeros(2), torch.zeros(2), 0.5)[1].item())


def test_loss_and_gradients_are_those_of_trl_s_own_trainer(chain, tmp_path):
    """Both are given the same drawn answers, rewards and reference, which differs from the policy."""
    prompts, answers = torch.arange(10, 16).view(2, 3), torch.arange(20, 40).view(4, 5)
    mask = torch.ones_like(answers)
    mask[1, 3:] = 0
    rewards = [0.1, 0.9, 0.8, 0.3]  # TRL has all first answers before all second ones
    theirs, loss = by_trl(chain, tmp_path, prompts, answers, mask, rewards)
    together = [0, 2, 1, 3]
    ours = opened(chain)
    reference = log_probs(opened(chain, noise=0.1), prompts, answers)[together]
    inputs = {
        "prompt_ids": prompts.repeat(2, 1)[together],
        "prompt_mask": torch.ones(4, 3, dtype=torch.long),
        "completion_ids": answers[together],
        "completion_mask": mask[together],
        "ref_per_token_logps": reference,
        "advantages": torch.tensor(rewards)[together],
    }
    trainer = SimpleNamespace(
        beta=0.3,
        current_gradient_accumulation_steps=1,
        _metrics={"train": {"kl": [], "entropy": [], "rewards/accuracies": []}},
        _get_per_token_logps_and_entropies=lambda model, ids, *_, **__: (
            log_probs(model, ids[:, :3], ids[:, 3:], again=False),
            torch.zeros(4, 5),
            None,
        ),
        accelerator=SimpleNamespace(reduce=lambda one, **_: one, gather=lambda one: one),
    )
    found = OnlinePairsTrainer._compute_loss(trainer, ours, inputs)
    found.backward()
    assert found.item() == pytest.approx(loss, abs=1e-6)
    for (name, one), other in zip(ours.named_parameters(), theirs, strict=True):
        assert torch.allclose(one.grad, other, atol=1e-6), name


def by_trl(chain, tmp_path, prompts, answers, mask, rewards):
    """The gradients and the loss of a step of TRL's trainer, to which answers and rewards are handed."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    args = OnlineDPOConfig(
        output_dir=str(tmp_path), beta=0.3, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
        missing_eos_penalty=None, disable_dropout=True, temperature=1.0, max_new_tokens=5,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(chain / "sft_model" / "model")
    trainer = OnlineDPOTrainer(
        model=opened(chain), ref_model=opened(chain, noise=0.1), args=args, processing_class=tokenizer,
        reward_funcs=lambda **_: rewards, train_dataset=Dataset.from_list([{"prompt": "a"}] * 2),
    )  # fmt: skip
    both = prompts.repeat(2, 1)
    trainer._generate = lambda *_: (both, torch.ones_like(both), answers, mask, None)
    trainer._calculate_rewards_from_functions = lambda **_: torch.tensor(rewards)
    loss = trainer.training_step(trainer.model, {"prompt": ["a", "b"]})
    return [one.grad for one in trainer.model.parameters()], loss.item()


def opened(chain, noise=0.0):
    """The SFT model, with its weights changed by noise."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(chain / "sft_model" / "model", dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in model.parameters():
            one += noise * torch.randn(one.shape, generator=generator)
    return model


def log_probs(model, prompts, answers, *, again=True):
    """The log-probability of each token of the answers; `again`: each prompt stands for two answers, without grad."""
    if again:
        prompts = prompts.repeat(2, 1)
    ids = torch.cat([prompts, answers], dim=1)
    with torch.no_grad() if again else torch.enable_grad():
        logits = model(ids).logits[:, prompts.shape[1] - 1 : -1]
        return logits.log_softmax(-1).gather(2, answers[..., None])[..., 0]


def test_a_training_moves_to_the_better_of_two_answers(chain, tmp_path, monkeypatch):
    """Paid for few words, answers get shorter; the answers of a pass are two by two to the same prompt."""
    seen, given = [], OnlinePairsTrainer._compute_loss

    def noted(self, model, inputs):
        seen.append((inputs["prompt_ids"], inputs["advantages"]))
        return given(self, model, inputs)

    monkeypatch.setattr(OnlinePairsTrainer, "_compute_loss", noted)
    short = {"rewards": {"length": 1.0}, "parts": {"length": {"most_words": 1}}, "max_new_tokens": 16}
    settings = {**ONLINE, **short, "max_steps": 24, "batch_size": 16, "learning_rate": 3e-3}
    record = align(chain, tmp_path / "aligned", settings, micro_batch_tokens=4 * RL["max_length"])
    metrics = record["metrics"]
    assert metrics["steps"] == 24 and len(seen) == 24 * 4
    for prompts, advantages in seen:
        assert (prompts[::2] == prompts[1::2]).all() and advantages.view(-1, 2).sum(1).abs().max() < 1e-5
    assert metrics["reward_length_last"] > metrics["reward_length_first"] + 0.1
    assert metrics["answer_tokens_trained_last"] < metrics["answer_tokens_trained_first"]
    assert abs(metrics["kl_trained_first"]) < 0.1 < metrics["kl_trained_last"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_generations": 4}, r"align\.num_generations=4: method online_dpo compares two answers .* 2 is right"),
        ({"beta": 0.0}, r"align\.beta=0\.0; method online_dpo needs one above 0"),
        ({"trl": {"epsilon": 0.2}}, r"align\.trl: epsilon stays as it is; they are GRPO's"),
        ({"trl": {"loss_type": "grpo"}}, r"align\.trl: loss_type .* GRPO's"),
    ],
)
def test_settings_without_effect_on_two_answers_are_refused(given, said):
    with pytest.raises(RecipeError, match=said):
        AlignRecipe(**{"method": "online_dpo", "num_generations": 2, "batch_size": 8, **given})


def test_a_pass_that_would_part_two_answers_is_refused(chain, tmp_path):
    with pytest.raises(RecipeError, match=r"a pass of this job has 1 of .* 192 tokens"):
        align(chain, tmp_path / "out", {**ONLINE, "max_steps": 1}, micro_batch_tokens=RL["max_length"])


def test_online_dpo_is_watched_as_rl_is(chain, tmp_path):
    asked = [
        {"prompt": f"{tiny.question(fruit)} ({number})", "reward_rubric": {"right": colour, "is_brief": True}}
        for number in range(50, 52)
        for fruit, colour in zip(tiny.FRUITS, tiny.COLOURS, strict=True)
    ]
    rows = tiny.write_rows(tmp_path / "watched.jsonl", asked)
    watch = {"every": 1, "prompts": rows, "truth": "rubric", "items": len(asked), "seed": 0}
    given = {"align": ONLINE, "watch": watch, "watched_data": {}}
    inputs = tuple(tiny.made(chain, asset) for asset in ("sft_model", "preference_data", "reward_model"))
    record = tiny.run("align", tmp_path / "aligned", given, inputs)
    looks = record["notes"]["watched"]["looks"]
    assert [one["step"] for one in looks] == [0, 1, 2]
    assert looks[0]["watched_kl_from_sft"] == 0 != looks[2]["watched_kl_from_sft"]
    assert {"watched_proxy_reward", "watched_true_reward", "watched_win_rate_against_sft"} <= looks[2].keys()

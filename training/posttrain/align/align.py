"""Alignment: the SFT model is moved towards answers that people prefer, by the method that the recipe names.

`dpo` learns from the pairs themselves (training.posttrain.methods.dpo), `grpo` and `rloo` by trying answers and
rewarding them (training.posttrain.methods.rl). Whatever the method, sampled answers to held-out prompts are scored by
the reward model before and after: a learned reward, which a policy may please without being better. The true one is
evaluation's business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.generate.sampler import Sampler, seeds_of
from training.job import Counts, Gate, Job, Outcome, Work
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.chat import Chat, template_digest
from training.posttrain.fit import is_main_process, set_up_torch
from training.posttrain.models import MODEL_FOLDER, load_tokenizer, right_padded, save_model
from training.posttrain.preferences.pairs import read_pairs
from training.posttrain.reward.reward import Judge, token_scores
from training.records import RecipeError

JUDGED_PROMPTS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The result of a method: a plain model (adapters merged), its metrics, and its gates."""

    model: Any
    counts: Counts
    metrics: dict[str, float]
    gates: tuple[Gate, ...]
    notes: dict[str, Any]


def run(job: Job, work: Work) -> Outcome:
    """Align the SFT model."""
    recipe = job.settings_as(AlignRecipe, "align")
    set_up_torch(job, work)
    sft = job.input_of("sft_model").file(MODEL_FOLDER)
    chat = Chat.of(sft)
    check_room(sft, recipe)
    tokenizer = load_tokenizer(sft, chat)
    pairs = read_pairs(job.input_of("preference_data"), chat, max_length=recipe.max_length, where="align")
    if recipe.method == "dpo":
        from training.posttrain.methods.dpo import train
    else:
        from training.posttrain.methods.rl import train
    trained = train(job, work, recipe, chat, tokenizer, pairs)
    if not is_main_process():
        return Outcome(files=())
    files = save_model(trained.model, tokenizer, chat, work.path)
    judged = judge(
        sft,
        work.path / MODEL_FOLDER,
        job.input_of("reward_model").file(MODEL_FOLDER),
        unique_prompts(pairs.held_out_rows),
        recipe,
    )
    return Outcome(
        files=tuple(files),
        counts=trained.counts,
        metrics={**trained.metrics, **judged},
        gates=trained.gates,
        notes={**trained.notes, "method": recipe.method, "chat_template_digest": template_digest(chat.template)},
    )


def check_room(model: Path, recipe: AlignRecipe) -> None:
    """RecipeError when answers of the asked length leave a prompt no position: it would show after training only."""
    positions = json.loads((model / "config.json").read_text("utf-8"))["max_position_embeddings"]
    if recipe.max_new_tokens >= positions:
        raise RecipeError(
            f"align.max_new_tokens={recipe.max_new_tokens} leaves no room for a prompt in the model's {positions}"
            " positions"
        )


def unique_prompts(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, str]]]:
    """The different prompts of the rows, in order, at most JUDGED_PROMPTS."""
    prompts: list[list[dict[str, str]]] = []
    for row in rows:
        if row["prompt"] not in prompts:
            prompts.append(row["prompt"])
    return prompts[:JUDGED_PROMPTS]


def judge(
    sft: Path, aligned: Path, reward_model: Path, prompts: Sequence[list[dict[str, str]]], recipe: AlignRecipe
) -> dict[str, float]:
    """Learned reward and length of sampled answers before and after, and the divergence of the two models.

    `kl_from_sft` is the mean over prompts of log p_aligned(answer) - log p_sft(answer), in nats an answer, for answers
    sampled from the aligned model at temperature 1: an unbiased estimate of KL(aligned, sft) at those prompts.
    """
    referee = Judge(reward_model)
    metrics: dict[str, float] = {"judged_prompts": len(prompts)}
    samplers = {"sft": Sampler(sft, batch_size=64), "aligned": Sampler(aligned, batch_size=64)}
    prompt_ids = referee.chat.encode_prompts(prompts)
    for name, sampler in samplers.items():
        answers = sampler.answer_tokens(
            prompt_ids,
            max_new_tokens=recipe.max_new_tokens,
            temperature=1.0,
            seeds=seeds_of(recipe.seed, len(prompt_ids)),
        )
        whole = [prompt + answer for prompt, answer in zip(prompt_ids, answers, strict=True)]
        scores = token_scores(referee.model, whole, referee.chat)
        metrics[f"learned_reward_{name}"] = sum(scores) / len(scores)
        metrics[f"answer_tokens_{name}"] = sum(map(len, answers)) / len(answers)
    pairs = list(zip(prompt_ids, answers, strict=True))  # the aligned model's, which came last
    chat = referee.chat
    ratios = [
        after - before
        for after, before in zip(
            log_probabilities(samplers["aligned"].model, pairs, chat),
            log_probabilities(samplers["sft"].model, pairs, chat),
            strict=True,
        )
    ]
    metrics["kl_from_sft"] = sum(ratios) / len(ratios)
    return metrics


def log_probabilities(model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], chat: Chat) -> list[float]:
    """log p(answer | prompt) in nats, in fp32, for (prompt, answer) token pairs."""
    import torch

    rows = [[*prompt, *answer] for prompt, answer in pairs]
    batch = right_padded(rows, chat.pad_id, model.device)
    spoken = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    for i, (prompt, answer) in enumerate(pairs):
        spoken[i, len(prompt) : len(prompt) + len(answer)] = True
    with torch.inference_mode(), torch.autocast(model.device.type, enabled=False):
        logits = model(**batch, use_cache=False).logits[:, :-1].float()
        each = logits.log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    return (each * spoken[:, 1:]).sum(-1).tolist()

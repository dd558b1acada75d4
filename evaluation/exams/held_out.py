"""Learned reward, length and divergence of answers sampled to held-out prompts, before and after alignment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from training.generate.sampler import Sampler, seeds_of
from training.generate.turns import Message
from training.posttrain.align.sampling.likelihoods import likelihoods
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.reward.reward import Judge, token_scores
from training.recipe.settings.evaluation import JUDGED_PROMPTS


def unique_prompts(rows: Sequence[dict[str, Any]]) -> list[list[Message]]:
    """Return the distinct prompts of the rows, in order, at most JUDGED_PROMPTS."""
    prompts = {json.dumps(row["prompt"], sort_keys=True): row["prompt"] for row in rows}
    return list(prompts.values())[:JUDGED_PROMPTS]


def before_and_after(
    sft: Path,
    aligned: Path,
    reward_model: Path,
    prompts: Sequence[list[Message]],
    recipe: AlignRecipe,
    *,
    shard: int = 1,
    gathers: bool = False,
) -> dict[str, float]:
    """Return learned reward and answer length of the SFT and the aligned model, and the divergence between them.

    `kl_from_sft` is the mean over prompts of log p_aligned(answer) - log p_sft(answer), in nats per answer, for answers
    sampled from the aligned model at temperature 1. It is an unbiased estimate of KL(aligned, sft) on these prompts.
    With `shard`, each weight of the three models is divided among so many processes, and all of them call this; with
    `gathers`, the weights of a model stay gathered while it draws its answers.
    """
    referee = Judge(reward_model, shard=shard)
    metrics: dict[str, float] = {"held_out_prompts": len(prompts)}
    samplers = {
        name: Sampler(of, batch_size=JUDGED_PROMPTS, shard=shard, gathers=gathers)
        for name, of in (("sft", sft), ("aligned", aligned))
    }
    prompt_ids = referee.chat.encode_prompts(prompts)
    answers: list[list[int]] = []
    for name, sampler in samplers.items():
        answers = sampler.answer_tokens(
            prompt_ids,
            max_new_tokens=recipe.max_new_tokens,
            temperature=1.0,
            seeds=seeds_of(recipe.seed, len(prompt_ids)),
        )
        whole = [prompt + answer for prompt, answer in zip(prompt_ids, answers, strict=True)]
        scores = token_scores(referee.model, whole, referee.chat)
        metrics[f"{name}_held_out_learned_reward"] = sum(scores) / len(scores)
        metrics[f"{name}_held_out_answer_tokens"] = sum(map(len, answers)) / len(answers)
    pairs = list(zip(prompt_ids, answers, strict=True))  # answers of the aligned model, the last in the loop
    chat = referee.chat
    with torch.inference_mode():  # as the sampler does, which leaves the shared weights so
        after, before = (likelihoods(samplers[name].model, pairs, chat) for name in ("aligned", "sft"))
    ratios = [one.nats - other.nats for one, other in zip(after, before, strict=True)]
    metrics["kl_from_sft"] = sum(ratios) / len(ratios)
    return metrics

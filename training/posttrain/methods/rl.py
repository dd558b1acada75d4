"""Reinforcement learning from rewards: GRPO (arXiv 2402.03300) or RLOO (arXiv 2402.14740) by TRL's trainers.

A step samples `batch_size` answers, `num_generations` to each of its prompts. An answer's reward is the reward model's
score in standard deviations of its scores on the training pairs and, weighed by `verifiable_reward_weight`, whether it
contains the right answer. `beta` holds the policy near the SFT model.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset

from training.data.sources import read_rows
from training.job import Counts, DataError, Gate, Job, Work
from training.posttrain.align.align import Trained
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.chat import Chat, Message
from training.posttrain.fit import (
    Reporter,
    adapter_config,
    fit,
    load_for_training,
    merged,
    rows_per_pass,
    trainer_config,
    window_means,
)
from training.posttrain.formats import Row, Unusable, check_unchanged, messages_of
from training.posttrain.models import MODEL_FOLDER, right_padded
from training.posttrain.preferences.pairs import Pairs
from training.posttrain.reward.reward import Judge, pair_scores, token_scores
from training.records import RecipeError

SCALE_PAIRS = 256  # pairs whose scores give the learned reward its unit


def train(job: Job, work: Work, recipe: AlignRecipe, chat: Chat, tokenizer: Any, pairs: Pairs) -> Trained:
    """The SFT model after RL on the prompts."""
    prompts, counts = read_prompts(job, recipe, chat, pairs)
    judge = Judge(job.input_of("reward_model").file(MODEL_FOLDER))
    learned = LearnedReward(judge, pairs)
    rewards: list[Callable[..., list[float | None]]] = [learned.rewards]
    weights = [1 - recipe.verifiable_reward_weight]
    if recipe.verifiable_reward_weight:
        rewards.append(right_answer)
        weights.append(recipe.verifiable_reward_weight)
    trainer = _trainer(job, work, recipe, tokenizer, prompts, rewards, weights)
    reporter = Reporter(work, checkpoint_seconds=job.run.checkpoint_seconds)
    fit(trainer, reporter)
    sample = right_padded(
        [pair.prompt_ids + pair.chosen_ids for pair in pairs.train[:8]], chat.pad_id, trainer.model.device
    )
    model, merge_gates = merged(trainer, sample)
    finite = bool(reporter.losses) and all(map(math.isfinite, reporter.losses))
    return Trained(
        model=model,
        counts=counts,
        metrics={**_windows(reporter, recipe), "steps": trainer.state.global_step, "prompts": len(prompts)},
        gates=(Gate(name="loss_finite", passed=finite, evidence={"steps": len(reporter.losses)}), *merge_gates),
        notes={"learned_reward_mean": learned.mean, "learned_reward_deviation": learned.deviation},
    )


def _windows(reporter: Reporter, recipe: AlignRecipe) -> dict[str, float]:
    """First and last tenth of what the trainer logged: rewards, length, KL."""
    names = {
        "reward": "reward",
        "rewards_learned_reward_mean": "learned_reward_in_deviations",
        "rewards_right_answer_mean": "right_answers",
        "completions_mean_length": "answer_tokens_trained",
        "kl": "kl_trained",
    }
    metrics = {}
    for logged, name in names.items():
        values = [numbers[logged] for numbers in reporter.logged if logged in numbers]
        if values:
            metrics[f"{name}_first"], metrics[f"{name}_last"] = window_means(values)
    return metrics


# Prompts


def read_prompts(job: Job, recipe: AlignRecipe, chat: Chat, pairs: Pairs) -> tuple[list[Row], Counts]:
    """Rows {"prompt", "answer"} to sample from, and where every row went. Held-out prompts of the pairs are left out.

    RecipeError when the verifiable reward has weight and not one row says what is right.
    """
    if recipe.prompts:
        check_unchanged(recipe.prompts, job)
        rows = list(read_rows(recipe.prompts, settings=job.settings))
    else:
        rows = pairs.train_rows
    held_out = [row["prompt"] for row in pairs.held_out_rows]
    kept: list[Row] = []
    dropped: dict[str, int] = {}
    for row in rows:
        try:
            kept.append(_prompt(row, chat, held_out, recipe.max_length - recipe.max_new_tokens))
        except Unusable as error:
            dropped[str(error)] = dropped.get(str(error), 0) + 1
    if not kept:
        raise DataError(f"align.prompts: none of {len(rows)} prompts can be used; reasons: {dropped}")
    if recipe.verifiable_reward_weight and not any(row["answer"] for row in kept):
        raise RecipeError(
            f"align.verifiable_reward_weight={recipe.verifiable_reward_weight}, but no prompt has a field `answer`"
            " to check against; name other prompts in align.prompts or set the weight to 0"
        )
    return kept, Counts(records_in=len(rows), kept=len(kept), dropped=dict(sorted(dropped.items())))


def _prompt(row: Row, chat: Chat, held_out: Sequence[list[Message]], max_tokens: int) -> Row:
    value = row.get("prompt", row.get("messages"))
    messages = [{"role": "user", "content": value}] if isinstance(value, str) else messages_of(value)
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not any(message["role"] == "user" for message in messages):
        raise Unusable("no_question")
    if messages in held_out:
        raise Unusable("held_out")
    if len(chat.encode_prompts([messages])[0]) > max_tokens:
        raise Unusable("longer_than_max_length")
    answer = row.get("answer")
    return {"prompt": messages, "answer": answer if isinstance(answer, str) else ""}


# Rewards


class LearnedReward:
    """The reward model's score in deviations from its mean, both taken from the training pairs' answers."""

    def __init__(self, judge: Judge, pairs: Pairs) -> None:
        self._judge = judge
        known = [score for both in pair_scores(judge.model, pairs.train[:SCALE_PAIRS], judge.chat) for score in both]
        self.mean = statistics.fmean(known)
        self.deviation = statistics.pstdev(known)
        if self.deviation == 0:
            raise DataError("the reward model gives every answer the same score; there is nothing to learn from it")

    @property
    def rewards(self) -> Callable[..., list[float | None]]:
        """The function that TRL calls; its name becomes the metric's."""

        def learned_reward(
            prompts: list[list[Message]], completion_ids: list[list[int]], **_: Any
        ) -> list[float | None]:
            chat = self._judge.chat
            # An answer that was cut off is judged as if it ended there: the model never scored an open end.
            answers = [
                [*(token for token in answer if token not in chat.control_ids), chat.end_id]
                for answer in completion_ids
            ]
            rows = [prompt + answer for prompt, answer in zip(chat.encode_prompts(prompts), answers, strict=True)]
            return [(score - self.mean) / self.deviation for score in token_scores(self._judge.model, rows, chat)]

        return learned_reward


def right_answer(completions: list[list[Message]], answer: list[str], **_: Any) -> list[float | None]:
    """1 where the completion contains the row's answer, 0 where not, None where the row has none."""
    return [
        None if not wanted else float(contains_answer(completion[-1]["content"], wanted))
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def contains_answer(text: str, answer: str) -> bool:
    """Whether the answer's words stand in the text, in order and side by side; case and punctuation do not count.

    A worked answer that ends in `#### 72`, as GSM8K's do, asks for the number alone, as the text's last number.
    """
    if "####" in answer:
        numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
        return bool(numbers) and numbers[-1] == answer.rpartition("####")[2].strip().replace(",", "")
    said, wanted = (re.findall(r"\w+", part.lower()) for part in (text, answer))
    return bool(wanted) and any(said[i : i + len(wanted)] == wanted for i in range(len(said) - len(wanted) + 1))


# Trainer


def _trainer(
    job: Job,
    work: Work,
    recipe: AlignRecipe,
    tokenizer: Any,
    prompts: list[Row],
    rewards: list[Any],
    weights: list[float],
) -> Any:
    if recipe.method == "grpo":
        from trl.trainer.grpo_config import GRPOConfig as Config
        from trl.trainer.grpo_trainer import GRPOTrainer as Trainer
    else:
        from trl.trainer.rloo_config import RLOOConfig as Config
        from trl.trainer.rloo_trainer import RLOOTrainer as Trainer
    rows, passes = rows_per_pass(job, batch_size=recipe.batch_size, row_tokens=recipe.max_length, where="align")
    extra = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": passes,
        "num_generations": recipe.num_generations,
        "max_completion_length": recipe.max_new_tokens,
        "beta": recipe.beta,
        "reward_weights": weights,
        "num_train_epochs": recipe.epochs,
        "max_steps": recipe.max_steps or -1,
    }
    return Trainer(
        model=load_for_training(job.input_of("sft_model").file(MODEL_FOLDER), precision=recipe.precision),
        args=trainer_config(Config, job, work, where="align", recipe=recipe, extra=extra),
        reward_funcs=rewards,
        train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer,
        peft_config=adapter_config(recipe.lora, task="CAUSAL_LM"),
    )

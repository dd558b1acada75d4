"""Train on sampled answers with TRL's trainers; shared by the methods that learn from samples.

Each step samples `batch_size` answers, `num_generations` for each of its prompts. The reward of an answer is the
weighted sum of the recipe's rewards: the reward model's standardized score, whether the answer is right
(training.data.exams.grading), and parts (training.posttrain.rewards). `beta` keeps the policy near the SFT model.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from datasets import Dataset

from training.contract.job import Counts, Gate, Job, Work
from training.generate.passes.pass_rows import MERGED_ROWS
from training.generate.turns import Chat
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.prompts import as_text, check_usable, reasons_of
from training.posttrain.align.sampling.looks import LOGGED, RewardLooks, WatchedReporter, fall_gate, watched_note
from training.posttrain.align.sampling.rewards import LearnedReward, RightAnswer, part_rewards
from training.posttrain.align.sampling.seeded_sampling import drawing_alike, spread_reference
from training.posttrain.align.sampling.watched_prompts import watched_prompts
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.align.watch_settings import AlignWatchRecipe
from training.posttrain.answer_weights import while_sampling
from training.posttrain.preferences.pairs import Pairs
from training.posttrain.reward.reward import Judge
from training.posttrain.rows.forms import Row, prompt_of
from training.posttrain.rows.sorting import PROMPTS_FILE, read_jsonl
from training.posttrain.rows_read import rows_read
from training.posttrain.scoring import LEARNED, RIGHT_ANSWER
from training.posttrain.trainer.compact import said_of, without_padding
from training.posttrain.trainer.fit import (
    Reporter,
    adapter_config,
    finite_gate,
    fit,
    load_for_training,
    merged,
    rows_per_pass,
    trainer_config,
    window_means,
)
from training.posttrain.trainer.models import MODEL_FOLDER, right_padded

SAMPLED = ("prompt", "answer", "rivals")  # fields of a prompt that TRL and the rewards read
Rewards = dict[Callable[..., list[float | None]], float]  # reward functions with their weights


def train_on_samples(given: Alignment, config: type, trainer_class: type) -> Trained:
    """Train the SFT model on the prompts with a trainer of TRL. `config` is the trainer's class of settings."""
    job, recipe, pairs = given.job, given.recipe, given.pairs
    rows, counts = read_prompts(job, recipe, given.chat, pairs)
    prompts = [{name: row[name] for name in SAMPLED} for row in rows]
    weights = recipe.reward_weights
    learned = (
        LearnedReward(Judge(job.input_of("reward_model").file(MODEL_FOLDER), shard=given.shard), pairs)
        if LEARNED in weights
        else None
    )
    rewards: Rewards = {}
    for name, weight in weights.items():
        if name == LEARNED:
            assert learned is not None
            function = learned.rewards
        elif name == RIGHT_ANSWER:
            function = RightAnswer(prompts).rewards
        else:
            function = part_rewards(name, recipe.reward_parts[name], recipe.reward_settings(name))
        rewards[function] = weight
    gathers, why = while_sampling(given.sft_model, recipe, job.run)
    trainer = _trainer(given, config, trainer_class, prompts, rewards, gathers=gathers)
    looks = _looks(given, trainer, rewards, prompts)
    timed = {"checkpoint_seconds": job.run.checkpoint_seconds}
    reporter = Reporter(given.work, **timed) if looks is None else WatchedReporter(looks, given.work, **timed)

    def result(work: Work) -> Trained:
        ids = [pair.prompt_ids + pair.chosen_ids for pair in pairs.train[:MERGED_ROWS]]
        made = merged(trainer, right_padded(ids, given.chat.pad_id, trainer.model.device), work.path)
        means = {"learned_reward_mean": learned.mean, "learned_reward_deviation": learned.deviation} if learned else {}
        is_watched = looks is not None and work is given.work  # a step that is kept on the way is the same without
        return Trained(
            model=made.model,
            files=made.files,
            counts=counts,
            metrics={**_windows(reporter, recipe), "steps": trainer.state.global_step, "prompts": len(prompts)},
            gates=(finite_gate(reporter.losses), *_fall_gates(looks, trainer), *made.gates),
            notes={
                **means,
                **said_of(trainer.model),
                **({"answer_weights": why} if why else {}),
                **({LOGGED: watched_note(looks, trainer.state.log_history)} if looks and is_watched else {}),
                **_prompts_read(trainer, [rows[i] for i in prompt_order(len(rows), recipe)]),
            },
        )

    reporter.kept = given.kept(result, len(prompts) / _prompts_per_step(trainer))
    fit(trainer, reporter, recipe)
    return result(given.work)


def _looks(given: Alignment, trainer: Any, rewards: Rewards, prompts: list[Row]) -> RewardLooks | None:
    """Return what looks at the training after the steps that the recipe watches; None if it watches none."""
    if "watch" not in given.job.settings:
        return None
    recipe = replace(given.recipe, watch=given.job.settings_as(AlignWatchRecipe, "watch"))
    watched = watched_prompts(recipe, given.chat, given.pairs, given.job.settings.get("watched_data", {}), prompts)
    return RewardLooks(replace(given, recipe=recipe), trainer, rewards, watched)


def _fall_gates(looks: RewardLooks | None, trainer: Any) -> tuple[Gate, ...]:
    """Return the gate on a fall of the truth, where that ends the training."""
    return (fall_gate(looks, trainer.state.log_history),) if looks and looks.watch.stops else ()


def _trainer(
    given: Alignment, config: type, trainer: type, prompts: list[Row], rewards: Rewards, *, gathers: bool = False
) -> Any:
    recipe = given.recipe
    rows, passes = rows_per_pass(given.job, batch_size=recipe.batch_size, row_tokens=recipe.max_length, where="align")
    order = prompt_order(len(prompts), recipe)
    stock = next(one for one in trainer.__mro__ if one.__module__.startswith("trl."))
    without_padding(sys.modules[stock.__module__])
    if given.shard > 1:
        spread_reference(stock, precision=recipe.precision, shard=given.shard)
    extra = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": passes,
        "num_generations": recipe.num_generations,
        "max_completion_length": recipe.max_new_tokens,
        "beta": recipe.beta,
        "reward_weights": list(rewards.values()),
        "max_steps": recipe.max_steps or -1,
        "shuffle_dataset": False,
    }
    return drawing_alike(trainer, recipe.trl, given.chat, gathers=gathers)(
        model=load_for_training(given.sft_model, precision=recipe.precision, shard=given.shard),
        args=trainer_config(config, given.job, given.work, where="align", recipe=recipe, extra=extra),
        reward_funcs=list(rewards),
        train_dataset=Dataset.from_list([prompts[i] for i in order]),
        processing_class=given.tokenizer,
        peft_config=adapter_config(recipe.peft, given.sft_model, task="CAUSAL_LM", where="align"),
    )


def _prompts_per_step(trainer: Any) -> Fraction:
    """Return the prompts that a step reads. Several steps may learn from one drawing."""
    args = trainer.args
    drawn = Fraction(args.generation_batch_size, args.num_generations)
    return drawn * args.gradient_accumulation_steps / (args.steps_per_generation * args.num_iterations)


def _prompts_read(trainer: Any, ordered: list[Row]) -> dict[str, Any]:
    """Return the note on the prompts that answers were sampled for. Several steps may learn from one drawing."""
    args = trainer.args
    passes = trainer.state.global_step * args.gradient_accumulation_steps
    drawings = -(-passes // (args.steps_per_generation * args.num_iterations))
    return rows_read(ordered, steps=drawings, batch_size=args.generation_batch_size // args.num_generations, whole=True)


def _windows(reporter: Reporter, recipe: AlignRecipe) -> dict[str, float]:
    """Return the mean reward, answer length and KL of the sampled answers, over the first and over the last steps.

    Each mean is over a tenth of the logged steps.
    """
    names = {
        "reward": "reward",
        "rewards_learned_reward_mean": "learned_reward_in_deviations",
        "rewards_right_answer_mean": "right_answers",
        "completions_mean_length": "answer_tokens_trained",
        "kl": "kl_trained",
        **{f"rewards_{name}_mean": f"reward_{name}" for name in recipe.reward_parts},
    }
    metrics = {}
    for logged, name in names.items():
        values = [numbers[logged] for numbers in reporter.logged if logged in numbers]
        if values:
            metrics[f"{name}_first"], metrics[f"{name}_last"] = window_means(values)
    return metrics


# Prompts


def prompt_order(number: int, recipe: AlignRecipe) -> list[int]:
    """Return the indices of the prompts in training order, for all steps. Each epoch has every prompt once."""
    rng, in_step = random.Random(recipe.seed), recipe.batch_size // recipe.num_generations
    wanted = in_step * recipe.max_steps if recipe.max_steps else max(in_step, round(recipe.epochs * number))
    order: list[int] = []
    while len(order) < wanted:
        epoch = list(range(number))
        if recipe.trl.get("shuffle_dataset", True):
            rng.shuffle(epoch)
        order += epoch
    return order[:wanted]


def read_prompts(job: Job, recipe: AlignRecipe, chat: Chat, pairs: Pairs) -> tuple[list[Row], Counts]:
    """Return the rows to sample from, with their sources, and the counts of kept and dropped rows.

    The rows are those of `prompt_data`, or the prompts of the training pairs if the recipe names no prompts. Held-out
    prompts of the preference pairs are dropped. Raise DataError if no row can be used, or if a reward with weight needs
    right answers and no row has one.
    """
    given = job.inputs_of("prompt_data")
    rows = read_jsonl(given[0].file(PROMPTS_FILE)) if given else [row | prompt_of(row) for row in pairs.train_rows]
    reasons = reasons_of(rows, recipe, chat, {as_text(row["prompt"]) for row in pairs.held_out_rows})
    kept = [row for row, why in zip(rows, reasons, strict=True) if not why]
    check_usable(recipe, kept)
    dropped = Counter(filter(None, reasons))
    return kept, Counts(records_in=len(rows), kept=len(kept), dropped=dict(sorted(dropped.items())))

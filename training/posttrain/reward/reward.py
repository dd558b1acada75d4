"""The stage `reward`: train the SFT model with a scalar head so that preferred answers score higher.

TRL's RewardTrainer minimizes the Bradley-Terry loss -log sigmoid(r_chosen - r_rejected) (Ouyang et al., arXiv
2203.02155) on tokenized rows. The score is the head's output at the end of the assistant's turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.contract.job import Gate, Job, Outcome, Work
from training.contract.process.lean import uncollected
from training.generate.chat_template import template_digest
from training.generate.passes.pass_rows import MERGED_ROWS, passes
from training.generate.spread import in_step
from training.generate.turns import Chat, Message
from training.posttrain.preferences.pairs import TOO_LONG, EncodedPair, Pairs, read_pairs
from training.posttrain.reward.settings import RewardRecipe
from training.posttrain.rows_read import rows_read
from training.posttrain.trainer.counted_rows import counting_rows, filled
from training.posttrain.trainer.fit import (
    Reporter,
    adapter_config,
    fit,
    load_for_training,
    merged,
    row_order,
    rows_per_pass,
    set_up_torch,
    trainer_config,
    window_means,
)
from training.posttrain.trainer.models import MODEL_FOLDER, load_model, load_tokenizer, right_padded, save_model
from training.posttrain.trainer.spread_state import saving_parts


def run(job: Job, work: Work) -> Outcome:
    """Train the reward model and measure its accuracy on the held-out pairs."""
    recipe = job.settings_as(RewardRecipe, "reward")
    set_up_torch(job, work)
    sft = job.input_of("sft_model").file(MODEL_FOLDER)
    chat = Chat.of(sft)
    tokenizer = load_tokenizer(sft, chat)
    pairs = read_pairs(job.input_of("preference_data"), chat, max_length=recipe.max_length, where="reward")
    order = row_order(
        [pair.length for pair in pairs.train], epochs=recipe.epochs, batch_size=recipe.batch_size, seed=recipe.seed
    )
    trainer, reporter = trainer_of(job, work, recipe, tokenizer, [pairs.train[i] for i in order], sft)
    fit(trainer, reporter, recipe)
    sample = [pair.prompt_ids + pair.chosen_ids for pair in pairs.train[:MERGED_ROWS]]
    made = merged(trainer, right_padded(sample, chat.pad_id, trainer.model.device), work.path)
    model = made.model
    held_out = pair_scores(model, pairs.held_out, chat)
    accuracy = sum(chosen > rejected for chosen, rejected in held_out) / len(held_out)
    files = save_model(model, tokenizer, chat, work.path, generates=False)
    first, last = window_means(reporter.losses) if reporter.losses else (math.nan, math.nan)
    return Outcome(
        files=(*files, *made.files),
        counts=pairs.counts,
        metrics={
            "held_out_pair_accuracy": accuracy,
            "held_out_margin": sum(chosen - rejected for chosen, rejected in held_out) / len(held_out),
            "held_out_pairs": len(held_out),
            "loss_first": first,
            "loss_last": last,
            "steps": trainer.state.global_step,
        },
        gates=(_accuracy_gate(accuracy, pairs, recipe), _finite_gate(reporter.losses), *made.gates),
        notes={
            "chat_template_digest": template_digest(chat.template),
            **rows_read(
                [pairs.train_rows[i] for i in order], steps=trainer.state.global_step, batch_size=recipe.batch_size
            ),
        },
    )


def trainer_of(
    job: Job, work: Work, recipe: RewardRecipe, tokenizer: Any, ordered: Sequence[EncodedPair], sft: Path
) -> tuple[Any, Reporter]:
    """Return TRL's trainer of a reward model, with the pairs in their final order, and its reporter."""
    with uncollected("trl.trainer.reward_trainer"):
        from datasets import Dataset
        from transformers import set_seed
        from trl.trainer.reward_config import RewardConfig
        from trl.trainer.reward_trainer import RewardTrainer

    # Each pair has two sequences.
    rows, passes = rows_per_pass(job, batch_size=recipe.batch_size, row_tokens=2 * recipe.max_length, where="reward")
    extra = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": passes,
        "train_sampling_strategy": "sequential",
        "max_length": None,
    }
    columns = {
        "chosen_ids": [pair.prompt_ids + pair.chosen_ids for pair in ordered],
        "rejected_ids": [pair.prompt_ids + pair.rejected_ids for pair in ordered],
    }
    table = Dataset.from_dict(filled(columns, recipe.batch_size))
    shard = job.run.shard if recipe.can_be_spread else 1
    set_seed(recipe.seed)  # for the initial weights of the head, which are drawn now
    trainer = counting_rows(saving_parts(RewardTrainer))(
        model=load_for_training(sft, precision=recipe.precision, reward=True, shard=shard),
        args=trainer_config(RewardConfig, job, work, where="reward", recipe=recipe, extra=extra),
        train_dataset=table,
        processing_class=tokenizer,
        peft_config=adapter_config(recipe.peft, sft, task="SEQ_CLS", where="reward"),
    )
    return trainer, Reporter(work, checkpoint_seconds=job.run.checkpoint_seconds)


def _accuracy_gate(accuracy: float, pairs: Pairs, recipe: RewardRecipe) -> Gate:
    passed = accuracy >= recipe.min_pair_accuracy
    number = len(pairs.held_out)
    evidence = {"accuracy": accuracy, "held_out_pairs": number, "min_pair_accuracy": recipe.min_pair_accuracy}
    more = {} if passed else {"way_out": _way_out(pairs, recipe)}
    return Gate(name="held_out_pair_accuracy", passed=passed, evidence=evidence | more)


def _way_out(pairs: Pairs, recipe: RewardRecipe) -> str:
    """Return what a person can do about a low accuracy, which few held-out pairs hardly measure."""
    rows, too_long = pairs.counts.records_in, pairs.counts.dropped.get(TOO_LONG, 0)
    longer = f"raise reward.max_length: {too_long} of {rows} pairs have more than {recipe.max_length} tokens; "
    return (
        f"{longer if too_long else ''}give more pairs, or raise reward.epochs; with reward.min_pair_accuracy 0 every"
        " reward model passes"
    )


def _finite_gate(losses: Sequence[float]) -> Gate:
    infinite = sum(not math.isfinite(loss) for loss in losses)
    return Gate(
        name="loss_finite",
        passed=bool(losses) and not infinite,
        evidence={"steps": len(losses), "not_finite": infinite},
    )


def pair_scores(model: Any, pairs: Sequence[EncodedPair], chat: Chat) -> list[tuple[float, float]]:
    """Return the scores of each pair's chosen and rejected answer."""
    chosen = token_scores(model, [pair.prompt_ids + pair.chosen_ids for pair in pairs], chat)
    rejected = token_scores(model, [pair.prompt_ids + pair.rejected_ids for pair in pairs], chat)
    return list(zip(chosen, rejected, strict=True))


def token_scores(model: Any, rows: Sequence[Sequence[int]], chat: Chat) -> list[float]:
    """Return the reward model's score of each tokenized conversation, computed in fp32, in the order of `rows`.

    A conversation longer than the model's context loses its beginning, as `rewards` of evaluation.exams does it.
    The processes that share a model may have different rows, and so different numbers of passes.
    """
    import torch

    rows = [row[-model.config.max_position_embeddings :] for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (len(rows[i]), i))
    scores = [0.0] * len(rows)
    with torch.no_grad(), torch.autocast(model.device.type, enabled=False), in_step(model, torch.no_grad()):
        for some in passes([len(rows[i]) for i in order]):
            batch = right_padded([rows[i] for i in order[some]], chat.pad_id, model.device)
            given = model(**batch, use_cache=False).logits[:, 0].float().tolist()
            for i, score in zip(order[some], given, strict=True):
                scores[i] = score
    return scores


class Judge:
    """A loaded reward model that scores conversations.

    With `shard`, each weight is divided among so many processes, all of which must score when one does.
    """

    def __init__(self, model_folder: Path, *, shard: int = 1) -> None:
        self.chat = Chat.of(model_folder)
        self.model = load_model(model_folder, reward=True, shard=shard).eval()

    def scores(self, conversations: Sequence[Sequence[Message]]) -> list[float]:
        """Return the score of each conversation's last answer. Higher is better; only differences have a meaning."""
        return token_scores(self.model, [encoded.input_ids for encoded in self.chat.encode(conversations)], self.chat)


def score(model_folder: Path, conversations: Sequence[Sequence[Message]]) -> list[float]:
    """Return the score of each conversation's last answer, by the reward model in a folder."""
    return Judge(model_folder).scores(conversations)

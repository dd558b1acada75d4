"""Train on preference pairs with TRL's DPOTrainer; shared by the methods that learn from pairs.

The reference is the SFT model itself, and its log-probabilities are computed once before the first step. At that point
policy and reference agree, so the loss is known in advance. A method's start gate compares the measured loss with it,
which shows a wrong reference, mask, dropout or adapter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from datasets import Dataset
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from training.job import Gate
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.fit import (
    Reporter,
    adapter_config,
    finite_gate,
    fit,
    load_for_training,
    merged,
    row_order,
    rows_per_pass,
    trainer_config,
    window_means,
)
from training.posttrain.models import right_padded
from training.posttrain.preferences.pairs import EncodedPair

START_PAIRS = 32

StartGate = Callable[[float, int, float], Gate]
"""The gate on a method's start: from the loss before the first step, the number of pairs that it was measured on, and
beta."""


class _TokenizedDPOTrainer(DPOTrainer):
    """TRL's DPOTrainer, changed to accept rows that are already tokenized, for which TRL has no setting."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset


def train_on_pairs(given: Alignment, *, loss: Mapping[str, Any], start_gate: StartGate) -> Trained:
    """Train the SFT model on the pairs. `loss` holds the fields of DPOConfig that define the method's loss."""
    trainer, pairs = pairs_trainer(given, loss), given.pairs
    reporter = Reporter(given.work, checkpoint_seconds=given.job.run.checkpoint_seconds)
    start_loss, measured = loss_at_start(trainer)
    fit(trainer, reporter)
    assert trainer.model is not None
    device = next(trainer.model.parameters()).device
    sample = right_padded([pair.prompt_ids + pair.chosen_ids for pair in pairs.train[:8]], given.chat.pad_id, device)
    made = merged(trainer, sample, given.work.path)
    first, last = window_means(reporter.losses) if reporter.losses else (math.nan, math.nan)
    _, last_accuracy = window_means(
        [numbers.get("rewards_accuracies", math.nan) for numbers in reporter.logged] or [math.nan]
    )
    return Trained(
        model=made.model,
        files=made.files,
        counts=pairs.counts,
        metrics={
            "start_loss": start_loss,
            "loss_first": first,
            "loss_last": last,
            "implicit_reward_accuracy_last": last_accuracy,
            "steps": trainer.state.global_step,
        },
        gates=(start_gate(start_loss, measured, given.recipe.beta), finite_gate(reporter.losses), *made.gates),
        notes={},
    )


def pairs_trainer(given: Alignment, loss: Mapping[str, Any]) -> DPOTrainer:
    """Return TRL's trainer with the training pairs in their final order."""
    recipe, pairs = given.recipe, given.pairs.train
    # Each pair has two sequences.
    rows, passes = rows_per_pass(
        given.job, batch_size=recipe.batch_size, row_tokens=2 * recipe.max_length, where="align"
    )
    extra = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": passes,
        "train_sampling_strategy": "sequential",
        "max_length": None,
        "beta": recipe.beta,
        "precompute_ref_log_probs": True,
        **loss,
    }
    order = row_order(
        [pair.length for pair in pairs], epochs=recipe.epochs, batch_size=recipe.batch_size, seed=recipe.seed
    )
    return _TokenizedDPOTrainer(
        model=load_for_training(given.sft_model, precision=recipe.precision),
        args=trainer_config(DPOConfig, given.job, given.work, where="align", recipe=recipe, extra=extra),
        train_dataset=table([pairs[i] for i in order]),
        processing_class=given.tokenizer,
        peft_config=adapter_config(recipe.peft, task="CAUSAL_LM", where="align"),
    )


def table(pairs: list[EncodedPair]) -> Dataset:
    """Return the preference pairs as a dataset with the columns that TRL's collator reads."""
    return Dataset.from_dict(
        {
            "prompt_ids": [pair.prompt_ids for pair in pairs],
            "chosen_ids": [pair.chosen_ids for pair in pairs],
            "rejected_ids": [pair.rejected_ids for pair in pairs],
        }
    )


def loss_at_start(trainer: DPOTrainer) -> tuple[float, int]:
    """Return the loss before the first step, and the number of pairs on which it was measured."""
    dataset, model = trainer.train_dataset, trainer.model
    assert isinstance(dataset, Dataset) and model is not None
    rows = [dataset[i] for i in range(min(START_PAIRS, len(dataset)))]
    batch = {name: value.to(model.device) for name, value in trainer.data_collator(rows).items()}
    was_training = model.training
    model.eval()
    # In the precision of the reference, so that the loss shows no difference between two precisions.
    with torch.no_grad(), trainer.accelerator.autocast():
        loss = float(trainer.compute_loss(model, batch))
    model.train(was_training)
    trainer._metrics["eval"].clear()  # else this measurement would be logged later as an evaluation
    return loss, len(rows)

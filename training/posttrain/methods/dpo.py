"""Direct preference optimization (Rafailov et al., arXiv 2305.18290) by TRL's DPOTrainer.

The reference is the SFT model itself; its log-probabilities are computed once before the first step. So before that
step policy and reference agree and the loss is ln 2; the gate measures it, and a wrong reference, mask, dropout or
adapter shows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from datasets import Dataset
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from training.job import Gate, Job, Work
from training.posttrain.align.align import Trained
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.chat import Chat
from training.posttrain.fit import (
    Reporter,
    adapter_config,
    fit,
    load_for_training,
    merged,
    row_order,
    rows_per_pass,
    trainer_config,
    window_means,
)
from training.posttrain.models import MODEL_FOLDER, right_padded
from training.posttrain.preferences.pairs import EncodedPair, Pairs

LN2_TOLERANCE = 1e-3
LN2_PAIRS = 32


class _TokenizedDPOTrainer(DPOTrainer):
    """DPOTrainer for rows that are already tokens; it has no setting for that."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


def train(job: Job, work: Work, recipe: AlignRecipe, chat: Chat, tokenizer: Any, pairs: Pairs) -> Trained:
    """The SFT model after DPO on the training pairs."""
    trainer = _trainer(job, work, recipe, tokenizer, pairs)
    reporter = Reporter(work, checkpoint_seconds=job.run.checkpoint_seconds)
    start = ln2_gate(trainer)
    fit(trainer, reporter)
    sample = right_padded(
        [pair.prompt_ids + pair.chosen_ids for pair in pairs.train[:8]], chat.pad_id, trainer.model.device
    )
    model, merge_gates = merged(trainer, sample)
    first, last = window_means(reporter.losses) if reporter.losses else (math.nan, math.nan)
    _, last_accuracy = window_means(
        [numbers.get("rewards_accuracies", math.nan) for numbers in reporter.logged] or [math.nan]
    )
    finite = bool(reporter.losses) and all(map(math.isfinite, reporter.losses))
    return Trained(
        model=model,
        counts=pairs.counts,
        metrics={
            "start_loss": start.evidence["loss"],
            "loss_first": first,
            "loss_last": last,
            "implicit_reward_accuracy_last": last_accuracy,
            "steps": trainer.state.global_step,
        },
        gates=(start, Gate(name="loss_finite", passed=finite, evidence={"steps": len(reporter.losses)}), *merge_gates),
        notes={},
    )


def _trainer(job: Job, work: Work, recipe: AlignRecipe, tokenizer: Any, pairs: Pairs) -> DPOTrainer:
    # Two sequences a pair.
    rows, passes = rows_per_pass(job, batch_size=recipe.batch_size, row_tokens=2 * recipe.max_length, where="align")
    extra = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": passes,
        "train_sampling_strategy": "sequential",
        "max_length": None,
        "beta": recipe.beta,
        "precompute_ref_log_probs": True,
    }
    order = row_order(
        [pair.length for pair in pairs.train], epochs=recipe.epochs, batch_size=recipe.batch_size, seed=recipe.seed
    )
    return _TokenizedDPOTrainer(
        model=load_for_training(job.input_of("sft_model").file(MODEL_FOLDER), precision=recipe.precision),
        args=trainer_config(DPOConfig, job, work, where="align", recipe=recipe, extra=extra),
        train_dataset=table([pairs.train[i] for i in order]),
        processing_class=tokenizer,
        peft_config=adapter_config(recipe.lora, task="CAUSAL_LM"),
    )


def table(pairs: list[EncodedPair]) -> Dataset:
    """The pairs as the columns that TRL's collator reads."""
    return Dataset.from_dict(
        {
            "prompt_ids": [pair.prompt_ids for pair in pairs],
            "chosen_ids": [pair.chosen_ids for pair in pairs],
            "rejected_ids": [pair.rejected_ids for pair in pairs],
        }
    )


def ln2_gate(trainer: DPOTrainer) -> Gate:
    """Whether the loss on the first pairs is ln 2 before the first step, as it is when policy and reference agree."""
    dataset = trainer.train_dataset
    rows = [dataset[i] for i in range(min(LN2_PAIRS, len(dataset)))]
    batch = {name: value.to(trainer.model.device) for name, value in trainer.data_collator(rows).items()}
    was_training = trainer.model.training
    trainer.model.eval()
    # In the precision that the reference was computed in: the difference of two precisions is not what is asked here.
    with torch.no_grad(), trainer.accelerator.autocast():
        loss = float(trainer.compute_loss(trainer.model, batch))
    trainer.model.train(was_training)
    trainer._metrics["eval"].clear()  # measured, not an evaluation to be logged later
    difference = abs(loss - math.log(2))
    return Gate(
        name="dpo_starts_at_ln2",
        passed=difference <= LN2_TOLERANCE,
        evidence={"loss": loss, "ln2": math.log(2), "tolerance": LN2_TOLERANCE, "pairs": len(rows)},
    )

"""Train on preference pairs with TRL's DPOTrainer; shared by the methods that learn from pairs.

The reference is the SFT model itself, and its log-probabilities are computed once before the first step. At that point
policy and reference agree, which a method's start gate checks (training.posttrain.align.initial_loss).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from datasets import Dataset
from trl.trainer import dpo_trainer
from trl.trainer.dpo_config import DPOConfig

from training.contract.job import Counts, Gate, Work
from training.generate.passes.pass_rows import MERGED_ROWS
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.initial_loss import Start, start_of
from training.posttrain.align.reference import unhashed, with_references
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.preferences.pairs import EncodedPair, Row
from training.posttrain.rows_read import rows_read
from training.posttrain.trainer.compact import said_of, without_padding
from training.posttrain.trainer.counted_rows import counting_rows, filled
from training.posttrain.trainer.fit import (
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
from training.posttrain.trainer.models import right_padded
from training.posttrain.trainer.spread_state import saving_parts

unhashed(dpo_trainer)
without_padding(dpo_trainer)
_SharedDPOTrainer: Any = counting_rows(saving_parts(dpo_trainer.DPOTrainer))
TrainerOfPairs = TypeVar("TrainerOfPairs", bound="TokenizedDPOTrainer")
StartGate = Callable[[Start, AlignRecipe], Gate]


class TokenizedDPOTrainer(_SharedDPOTrainer):
    """TRL's DPOTrainer, changed to accept rows that are already tokenized, for which TRL has no setting.

    No process needs the whole model, and rows that fill the last batch do not count.
    """

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        return with_references(self, dataset, batch_size, "ref_chosen_logps", "ref_rejected_logps")


def train_on_pairs(given: Alignment, *, loss: Mapping[str, Any], start_gate: StartGate) -> Trained:
    """Train the SFT model on the pairs. `loss` holds the fields of DPOConfig that define the method's loss."""
    return train_trainer(given, pairs_trainer(given, loss), lambda start: start_gate(start, given.recipe))


def train_trainer(given: Alignment, trainer: Any, start_gate: Callable[[Start], Gate]) -> Trained:
    """Train with a trainer of `pairs_trainer`, and judge its start."""
    rows = [given.pairs.train_rows[i] for i in pairs_order(given)]
    return train_from_start(given, trainer, start_gate, given.pairs.counts, rows, epoch_rows=len(given.pairs.train))


def train_from_start(
    given: Alignment,
    trainer: Any,
    start_gate: Callable[[Start], Gate],
    counts: Counts,
    ordered: Sequence[Row],
    *,
    epoch_rows: int,
) -> Trained:
    """Train with one of TRL's trainers that has a reference, and judge its start.

    `ordered` are the rows of preference data as the trainer reads them, `epoch_rows` those of one epoch.
    """
    reporter = Reporter(given.work, checkpoint_seconds=given.job.run.checkpoint_seconds)
    start = start_of(trainer)

    def result(work: Work) -> Trained:
        device = next(trainer.model.parameters()).device
        rows = [pair.prompt_ids + pair.chosen_ids for pair in given.pairs.train[:MERGED_ROWS]]
        made = merged(trainer, right_padded(rows, given.chat.pad_id, device), work.path)
        first, last = window_means(reporter.losses) if reporter.losses else (math.nan, math.nan)
        accuracies = [numbers["rewards_accuracies"] for numbers in reporter.logged if "rewards_accuracies" in numbers]
        margins = [numbers["rewards_margins"] for numbers in reporter.logged if "rewards_margins" in numbers]
        return Trained(
            model=made.model,
            files=made.files,
            counts=counts,
            metrics={
                "start_loss": start.loss,
                "loss_first": first,
                "loss_last": last,
                **({"implicit_reward_accuracy_last": window_means(accuracies)[1]} if accuracies else {}),
                **({"implicit_reward_margin_last": window_means(margins)[1]} if margins and not accuracies else {}),
                "steps": trainer.state.global_step,
            },
            gates=(start_gate(start), finite_gate(reporter.losses), *made.gates),
            notes={
                **said_of(trainer.model),
                **rows_read(ordered, steps=trainer.state.global_step, batch_size=given.recipe.batch_size),
            },
        )

    reporter.kept = given.kept(result, Fraction(epoch_rows, given.recipe.batch_size))
    fit(trainer, reporter, given.recipe)
    return result(given.work)


def pairs_order(given: Alignment) -> list[int]:
    """Return the indices of the training pairs in training order."""
    recipe, lengths = given.recipe, [pair.length for pair in given.pairs.train]
    return row_order(lengths, epochs=recipe.epochs, batch_size=recipe.batch_size, seed=recipe.seed)


def pairs_trainer(
    given: Alignment, loss: Mapping[str, Any], trainer: type[TrainerOfPairs] = TokenizedDPOTrainer
) -> TrainerOfPairs:
    """Return TRL's trainer, or a class made from it, with the training pairs in their final order."""
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
    return trainer(
        model=load_for_training(given.sft_model, precision=recipe.precision, shard=given.shard),
        args=trainer_config(DPOConfig, given.job, given.work, where="align", recipe=recipe, extra=extra),
        train_dataset=table([pairs[i] for i in pairs_order(given)], recipe.batch_size),
        processing_class=given.tokenizer,
        peft_config=adapter_config(recipe.peft, given.sft_model, task="CAUSAL_LM", where="align"),
    )


def table(pairs: list[EncodedPair], batch_size: int) -> Dataset:
    """Return the preference pairs as a dataset of whole batches with the columns that TRL's collator reads."""
    columns = {
        "prompt_ids": [pair.prompt_ids for pair in pairs],
        "chosen_ids": [pair.chosen_ids for pair in pairs],
        "rejected_ids": [pair.rejected_ids for pair in pairs],
    }
    return Dataset.from_dict(filled(columns, batch_size))

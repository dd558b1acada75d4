"""Train on single answers, desired or not, with TRL's KTOTrainer.

The divergence of policy and reference is estimated from answers that stand behind the wrong prompts: each answer of a
batch with the next one's prompt, as in TRL. So a batch must fit into one pass, whatever the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset
from torch import Tensor
from trl.trainer import kto_trainer
from trl.trainer.kto_config import KTOConfig

from training.contract.job import Gate
from training.contract.records import RecipeError
from training.generate.passes.pass_rows import START_ROWS
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.initial_loss import Start
from training.posttrain.align.losses import answers_start
from training.posttrain.align.paired import train_from_start
from training.posttrain.align.reference import unhashed, with_references
from training.posttrain.preferences.answers import EncodedAnswer, read_answers
from training.posttrain.trainer.compact import without_padding
from training.posttrain.trainer.counted_rows import counting_rows, filled
from training.posttrain.trainer.fit import adapter_config, load_for_training, row_order, rows_per_pass, trainer_config
from training.posttrain.trainer.spread_state import saving_parts

ESTIMATES_DIVERGENCE = "kto"  # the loss that needs answers behind other prompts
unhashed(kto_trainer)
without_padding(kto_trainer)
_SharedKTOTrainer: Any = counting_rows(saving_parts(kto_trainer.KTOTrainer))


class _TokenizedKTOTrainer(_SharedKTOTrainer):
    """TRL's KTOTrainer, changed to accept rows that are already tokenized, for which TRL has no setting.

    No process needs the whole model, and rows that fill the last batch do not count.
    """

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        return with_references(self, dataset, batch_size, "ref_logps", "ref_KL_logps")

    def _compute_kl_logps(self, model: Any, batch: dict[str, Tensor]) -> Tensor | None:
        # TRL takes the mean of the processes' mean divergences, and these may have different numbers of rows.
        policy = super()._compute_kl_logps(model, batch)
        if policy is None or self.part_of_mean == 1:
            return policy
        return batch["ref_KL_logps"] + (policy - batch["ref_KL_logps"]) * self.part_of_mean


def train_on_answers(given: Alignment, *, start_gate: Callable[[Start, float, str], Gate]) -> Trained:
    """Train the SFT model on both answers of each pair, and on the answers without a partner."""
    recipe = given.recipe
    item = given.job.input_of("preference_data")
    answers, counts = read_answers(item, given.chat, max_length=recipe.max_length, where="align")
    order = row_order(
        [answer.length for answer in answers], epochs=recipe.epochs, batch_size=recipe.batch_size, seed=recipe.seed
    )
    ordered = [answers[i] for i in order]
    desired = sum(answer.is_desired for answer in ordered[:START_ROWS])
    expected = answers_start(recipe.trl, desired, min(START_ROWS, len(ordered)) - desired)
    loss = recipe.trl.get("loss_type", ESTIMATES_DIVERGENCE)
    trainer = answers_trainer(given, ordered, loss)
    rows = [answer.row for answer in ordered]
    return train_from_start(
        given, trainer, lambda start: start_gate(start, expected, loss), counts, rows, epoch_rows=len(answers)
    )


def answers_trainer(given: Alignment, answers: Sequence[EncodedAnswer], loss: str) -> _TokenizedKTOTrainer:
    """Return TRL's trainer with the answers in their final order."""
    recipe = given.recipe
    rows, passes = rows_per_pass(given.job, batch_size=recipe.batch_size, row_tokens=recipe.max_length, where="align")
    if loss == ESTIMATES_DIVERGENCE and passes > 1:
        raise RecipeError(
            f"align.method {recipe.method}: the profile's micro_batch_tokens holds {rows} of the"
            f" {rows * passes} answers of a process's batch, from which the divergence is estimated; raise it, or set"
            " align.trl.loss_type: apo_zero_unpaired, which estimates none"
        )
    extra = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": passes,
        "train_sampling_strategy": "sequential",
        "max_length": None,
        "beta": recipe.beta,
        "precompute_ref_log_probs": True,
    }
    return _TokenizedKTOTrainer(
        model=load_for_training(given.sft_model, precision=recipe.precision, shard=given.shard),
        args=trainer_config(KTOConfig, given.job, given.work, where="align", recipe=recipe, extra=extra),
        train_dataset=table(answers, recipe.batch_size, estimates_divergence=loss == ESTIMATES_DIVERGENCE),
        processing_class=given.tokenizer,
        peft_config=adapter_config(recipe.peft, given.sft_model, task="CAUSAL_LM", where="align"),
    )


def table(answers: Sequence[EncodedAnswer], batch_size: int, *, estimates_divergence: bool) -> Dataset:
    """Return the answers as a dataset of whole batches with the columns that TRL's collator reads.

    To estimate the divergence, each row also has the answer before it in its batch, the first one the last answer.
    """
    columns: dict[str, list[Any]] = {
        "prompt_ids": [answer.prompt_ids for answer in answers],
        "completion_ids": [answer.answer_ids for answer in answers],
        "label": [answer.is_desired for answer in answers],
    }
    if estimates_divergence:
        said = columns["completion_ids"]
        batches = [said[start : start + batch_size] for start in range(0, len(said), batch_size)]
        columns["KL_completion_ids"] = [ids for one in batches for ids in [one[-1], *one[:-1]]]
    return Dataset.from_dict(filled(columns, batch_size))

"""Log-probabilities of the reference, which is the model before its first step; shared by trainers of TRL."""

from __future__ import annotations

from typing import Any

from training.generate.spread import shared_out
from training.posttrain.trainer.counted_rows import COUNTS


def with_references(trainer: Any, dataset: Any, batch_size: int, *columns: str) -> Any:
    """Return the dataset with the log-probabilities of each row by the reference, in columns of these names.

    The processes share out the batches. TRL's own code would write them into a file that only one process finds.
    """
    rows = [row for row in dataset if row[COUNTS]]

    def computed(batch: list[Any]) -> list[list[float]]:
        inputs = trainer._prepare_inputs(trainer.data_collator(batch))
        return [
            values.tolist() for values in trainer.compute_ref_log_probs(trainer.model, inputs) if values is not None
        ]

    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    found = [values for _, values in shared_out(batches, computed, model=trainer.model, before_training=True)]
    unused = [0.0] * (len(dataset) - len(rows))
    for column, parts in zip(columns, zip(*found, strict=True), strict=False):
        dataset = dataset.add_column(column, [value for part in parts for value in part] + unused)
    return dataset


def unhashed(trainer_module: Any) -> None:
    """Let a module of TRL hash no model: the hash only names a file that is not used here, and needs all weights."""

    def hashed(model: Any) -> str:
        del model
        return ""

    trainer_module.hash_module = hashed

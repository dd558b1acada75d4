"""Measure a trainer's loss before the first step, and judge whether the training starts as its method says.

A wrong reference, mask, dropout or adapter shows there, before anything is spent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from training.contract.job import Gate
from training.generate.passes.pass_rows import START_ROWS, passes
from training.posttrain.trainer.counted_rows import COUNTS

TOLERANCE = 1e-3  # of the loss, as a share of it where it is above 1; of a reward, in the reward's unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The loss before the first step, on so many rows, and the mean of β·(policy − reference) of its answers.

    The rows are read in passes, and the mean is that of the pass in which it is furthest from 0.
    """

    loss: float
    rows: int
    rewards: dict[str, float]


def start_of(trainer: Any) -> Start:
    """Return the start of a DPOTrainer or KTOTrainer, measured on its first rows."""
    rows, model = first_rows(trainer), trainer.model
    was_training, loss, rewards = model.training, 0.0, {}
    model.eval()
    for some in passes([_tokens(row) for row in rows]):
        batch = {name: value.to(model.device) for name, value in trainer.data_collator(rows[some]).items()}
        # In the precision of the reference, so that the loss shows no difference between two precisions.
        with torch.no_grad(), trainer.accelerator.autocast():
            loss += float(trainer.compute_loss(model, batch)) * len(rows[some]) / len(rows)
        measured = trainer._metrics["eval"]
        for side in ("chosen", "rejected"):
            if values := measured[f"rewards/{side}"]:
                # NaN is furthest of all, so that no gate overlooks it.
                told = (rewards.get(side, 0.0), float(values[-1]))
                rewards[side] = max(told, key=lambda one: (math.isnan(one), abs(one)))
        measured.clear()  # else this measurement would be logged later as an evaluation
    model.train(was_training)
    return Start(loss=loss, rows=len(rows), rewards=rewards)


def _tokens(row: Mapping[str, Any]) -> int:
    """Return how many tokens of a row are read: its prompt with each of its answers, padded to the longest."""
    answers = [len(ids) for name, ids in row.items() if name.endswith("_ids") and name != "prompt_ids"]
    return len(answers) * (len(row["prompt_ids"]) + max(answers))


def first_rows(trainer: Any) -> list[dict[str, Any]]:
    """Return the first rows of a trainer's dataset, on which its start is measured."""
    dataset = trainer.train_dataset
    return [row for row in dataset.select(range(min(START_ROWS, len(dataset)))) if row[COUNTS]]


def loss_gate(start: Start, expected: float, *, losses: tuple[str, ...]) -> Gate:
    """Return the gate `starts_at_known_loss`: the loss before the first step is the one that the method has there."""
    tolerance = TOLERANCE * max(1.0, abs(expected))
    return Gate(
        name="starts_at_known_loss",
        passed=abs(start.loss - expected) <= tolerance,
        evidence={
            "loss": start.loss,
            "expected": expected,
            "tolerance": tolerance,
            "rows": start.rows,
            "losses": ", ".join(losses),
        },
    )


def reference_gate(start: Start) -> Gate:
    """Return the gate `starts_at_reference`: before the first step, policy and reference give equal probabilities.

    It takes the place of a gate on the loss where the loss depends on the model.
    """
    return Gate(
        name="starts_at_reference",
        passed=bool(start.rewards) and all(abs(reward) <= TOLERANCE for reward in start.rewards.values()),
        evidence={**start.rewards, "tolerance": TOLERANCE, "rows": start.rows, "loss": start.loss},
    )

"""What a step did, and what processes tell each other along with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from training.order.ledger import Entry


class Told(NamedTuple):
    """What a process tells the others along with a step's gradients; in a report, what any of them told."""

    stop: bool = False  # a signal asked to stop
    save: bool = False  # a checkpoint is due; the first process has the clock
    writing: bool = False  # the pending checkpoint is not written yet


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What one step did. `loss` is in nats per trained token; `spike` is what the ledger should get."""

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    is_skipped: bool
    was_rerun: bool
    told: Told
    loads: Tensor  # `[expert layers, experts]`, tokens sent to each
    spike: Entry | None = None  # None: the step was not the end of a spike

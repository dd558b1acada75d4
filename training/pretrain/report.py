"""The report of one step, and the flags that processes exchange during it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from training.order.ledger import LedgerEntry


class Told(NamedTuple):
    """Flags that all processes exchange together with a step's gradients: stop, save, still writing.

    In a step's report, a flag is true if any process set it.
    """

    stop: bool = False  # a signal asked to stop
    save: bool = False  # a checkpoint is due; the first process has the clock
    writing: bool = False  # the pending checkpoint is not written yet


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """The results of one step. `loss` is in nats per trained token; `spike` is the entry to add to the ledger."""

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    is_skipped: bool
    was_rerun: bool
    told: Told
    loads: Tensor  # `[expert layers, experts]`, tokens sent to each
    spike: LedgerEntry | None = None  # None: the step did not complete a spike

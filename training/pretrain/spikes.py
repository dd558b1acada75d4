"""Distinguish a spike of the loss or of the gradient norm from noise. Standard library only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from training.contract.records import RecipeError, check_above_zero
from training.order.ledger import LedgerEntry

# The least spread taken for noise, in nats: a run whose last losses are equal to the last digit is not in a spike
# because the next one differs in it.
LEAST_SPREAD = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeRecipe:
    """Settings of rollbacks after a loss spike: PaLM's method (arXiv 2204.02311, section 5.1), without a person.

    A step is wrong when its loss, or the logarithm of its gradient norm, is more than `deviations` robust standard
    deviations above the median of the last `window` steps. `patience` wrong steps in a row are a spike: the run returns
    to its state `rollback_steps` before the first wrong step, and skips all batches from there to `skipped_after` steps
    after the last one.
    """

    deviations: float | None = None  # None: no step is checked
    window: int = 128  # steps
    patience: int = 2  # steps in a row
    rollback_steps: int = 100
    skipped_after: int = 100  # steps; together with `rollback_steps` at least PaLM's 200 batches
    max_rollbacks: int = 3  # a further spike stops the run

    def __post_init__(self) -> None:
        check_above_zero(self, "pretrain.spikes", "deviations")
        if min(self.skipped_after, self.max_rollbacks) < 0:
            raise RecipeError(
                f"pretrain.spikes: skipped_after={self.skipped_after}, max_rollbacks={self.max_rollbacks}; none may be"
                " negative"
            )
        if self.window < 8 or self.patience < 1 or self.rollback_steps < 1:
            raise RecipeError(
                f"pretrain.spikes: window={self.window} (at least 8), patience={self.patience} and"
                f" rollback_steps={self.rollback_steps} (at least 1)"
            )


def deviation(value: float, history: Sequence[float]) -> float:
    """Return how far `value` is from the median of `history`, in robust standard deviations; negative if below.

    This is the modified z-score of Iglewicz and Hoaglin (How to Detect and Handle Outliers, 1993). Outliers hardly move
    the median and the median absolute deviation. A spread below LEAST_SPREAD counts as LEAST_SPREAD.
    """
    median = statistics.median(history)
    spread = statistics.median(abs(one - median) for one in history) / 0.6745
    return (value - median) / max(spread, LEAST_SPREAD)


@dataclass(kw_only=True, slots=True)
class Watched:
    """The state of the spike detector, which checkpoints contain.

    It holds the steps to compare with, and the wrong steps so far. A step is wrong if its loss or gradient norm is far
    above the median of earlier steps.
    """

    losses: list[float] = field(default_factory=list)  # losses of the last calm steps, in nats
    norms: list[float] = field(default_factory=list)  # logarithms of their gradient norms, which are nearly log-normal
    onset: int | None = None  # the first of the consecutive wrong steps up to now; None: the last step was calm
    phase: int = 0  # number of the plan's phase

    def see(self, step: int, *, loss: float, norm: float, recipe: SpikeRecipe, last_step: int) -> LedgerEntry | None:
        """Add a step; return a ledger entry, up to the run's `last_step` at most, if the step completes a spike.

        A step is wrong if its loss or its norm is more than `deviations` above the median of the last `window` calm
        steps; `patience` wrong steps in a row are a spike. Later steps are not compared with wrong steps, so that a
        spike does not become normal.
        """
        if not recipe.deviations:
            return None
        log_norm = math.log(max(norm, 1e-30))
        if len(self.losses) >= recipe.window:
            by_loss, by_norm = deviation(loss, self.losses), deviation(log_norm, self.norms)
            if max(by_loss, by_norm) > recipe.deviations:
                self.onset = step if self.onset is None else self.onset
                if step - self.onset + 1 < recipe.patience:
                    return None
                return LedgerEntry(
                    first=max(0, self.onset - recipe.rollback_steps),
                    last=min(step + recipe.skipped_after, last_step),
                    reason="spike",
                    onset=self.onset,
                    seen_at=step,
                    loss=loss,
                    gradient_norm=norm,
                    loss_deviation=by_loss,
                    norm_deviation=by_norm,
                )
        self.onset = None
        self.losses = [*self.losses, loss][-recipe.window :]
        self.norms = [*self.norms, log_norm][-recipe.window :]
        return None

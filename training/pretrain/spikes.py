"""How a spike of the loss or of the gradient is told from noise. Standard library only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from training.order.ledger import Entry
from training.pretrain.spike_settings import SpikeRecipe

# The least spread taken for noise, in nats: a run whose last losses are equal to the last digit is not in a spike
# because the next one differs in it.
LEAST_SPREAD = 0.01


def deviation(value: float, history: Sequence[float]) -> float:
    """How far `value` lies above the median of `history`, in standard deviations of a normal law with its MAD.

    The modified z-score of Iglewicz and Hoaglin (How to Detect and Handle Outliers, 1993); median and MAD are not moved
    by the outliers themselves. Negative below the median. A spread under LEAST_SPREAD counts as that.
    """
    median = statistics.median(history)
    spread = statistics.median(abs(one - median) for one in history) / 0.6745
    return (value - median) / max(spread, LEAST_SPREAD)


@dataclass(kw_only=True, slots=True)
class Watched:
    """The detector's memory: what it compares with, and since when it sees something. Part of every checkpoint."""

    losses: list[float] = field(default_factory=list)  # of the last calm steps, nats
    norms: list[float] = field(default_factory=list)  # their gradient norms' logarithms: norms are nearly log-normal
    onset: int | None = None  # first of the wrong steps in a row up to now
    phase: int = 0  # of the plan

    def see(self, step: int, *, loss: float, norm: float, recipe: SpikeRecipe, last_step: int) -> Entry | None:
        """Take in a step; an entry, up to the run's `last_step` at most, when it completes a spike.

        A step is wrong when its loss or its norm is more than `deviations` above the last `window` calm ones;
        `patience` of them in a row are a spike. Nothing is compared with wrong steps later, so that a spike does not
        become what is normal.
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
                return Entry(
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

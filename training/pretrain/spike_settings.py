"""The settings `pretrain.spikes`: when a run rolls back after a spike of the loss or gradient."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError, check_above_zero


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

"""The recipe section `pretrain.stop`: when the training of the base model ends before its budget is used."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError

LOOK_EVERY = 50  # steps


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRecipe:
    """After how many tokens without a better look training ends: at held-out text, or at the items of a watched suite.

    The learning rate follows the schedule of the whole budget and may not have fallen by then.
    """

    patience_tokens: int | None = None  # since the best look; None: training never ends early
    every: int = LOOK_EVERY  # steps between two looks
    min_fall: float = 0.0  # bits per byte by which a look must be below the best one before it
    suite: str | None = None  # of `pretrain.watch.suites`, whose right answers are looked at; None: held-out text

    def __post_init__(self) -> None:
        if self.patience_tokens is not None and self.patience_tokens < 1:
            raise RecipeError(f"pretrain.stop.patience_tokens={self.patience_tokens}; at least 1, or null, is right")
        if self.every < 1 or self.min_fall < 0:
            raise RecipeError(
                f"pretrain.stop: every={self.every} (at least 1), min_fall={self.min_fall:g} (at least 0)"
            )
        if self.patience_tokens is None and (self.every != LOOK_EVERY or self.min_fall or self.suite):
            raise RecipeError(
                "pretrain.stop: every, min_fall and suite are without effect, because patience_tokens is null"
            )

    def is_due(self, step: int) -> bool:
        """Whether the model is looked at after so many steps."""
        return self.patience_tokens is not None and step % self.every == 0


@dataclass(kw_only=True, slots=True)
class Stopping:
    """What the looks have shown up to a step; every checkpoint contains it."""

    best_step: int = 0
    best_bits: float | None = None  # None before the first look
    bits: float | None = None  # of the last look
    is_over: bool = False

    def look(self, step: int, bits: float, *, waited_tokens: int, recipe: StopRecipe) -> None:
        """Add a look. `waited_tokens` are those read since the best look before it."""
        self.bits = bits
        if self.best_bits is None or bits < self.best_bits - recipe.min_fall:
            self.best_step, self.best_bits = step, bits
        else:
            self.is_over = waited_tokens >= (recipe.patience_tokens or 0)

"""The fields of the recipe section `pretrain` that decide how tokens become rows and batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from training.contract.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPhase:
    """A stretch of training steps with one row length and one batch size, all sizes in tokens."""

    tokens: int
    sequence_length: int
    global_batch_tokens: int

    def __post_init__(self) -> None:
        if self.global_batch_tokens % self.sequence_length:
            raise RecipeError(
                f"global_batch_tokens={self.global_batch_tokens} is not a multiple of "
                f"sequence_length={self.sequence_length}"
            )
        if self.tokens < self.global_batch_tokens:
            raise RecipeError(f"tokens={self.tokens} is less than one batch of {self.global_batch_tokens}")

    @property
    def steps(self) -> int:
        """The number of training steps: whole batches in the phase's token budget."""
        return self.tokens // self.global_batch_tokens

    @property
    def rows(self) -> int:
        """The number of rows in a batch of this phase."""
        return self.global_batch_tokens // self.sequence_length


@dataclass(frozen=True, kw_only=True, slots=True)
class ContinueRecipe:
    """The recipe section `pretrain.continues`: a shorter training whose steps before its decay are this one's too."""

    # None: continues none; of another, `pretrain.tokens` give `tokens`, and no field before the decay may differ.
    recipe: str | None = None
    tokens: tuple[int, ...] = ()  # its budget; if it continues one too, all budgets, ascending; empty: continues none


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchesRecipe:
    """The fields of `pretrain` from which the training plan is made; all sizes are in tokens.

    With `tokens: auto` there are no phases and steps; `of_tokens` gives them once the plan knows the number.
    """

    tokens: int | Literal["auto"]
    sequence_length: int
    global_batch_tokens: int
    batch_warmup: tuple[BatchPhase, ...] = ()
    packing: Literal["end_to_end", "best_fit"] = "end_to_end"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.global_batch_tokens % self.sequence_length:
            raise RecipeError(
                f"pretrain.global_batch_tokens={self.global_batch_tokens} is not a multiple of "
                f"sequence_length={self.sequence_length}"
            )
        if self.tokens == "auto":
            if self.batch_warmup:
                raise RecipeError(
                    "pretrain.batch_warmup: its tokens are part of a budget; give pretrain.tokens a number"
                )
            return
        warmup = self.tokens - self._tokens_left
        if self._tokens_left < self.global_batch_tokens:
            after = f" after {warmup} tokens of batch_warmup" if warmup else ""
            raise RecipeError(
                f"pretrain.tokens={self.tokens} leaves less than one batch of {self.global_batch_tokens}{after}"
            )
        longest = max((phase.sequence_length for phase in self.batch_warmup), default=0)
        if longest > self.sequence_length:
            raise RecipeError(
                f"pretrain.batch_warmup: sequence_length={longest} is longer than the one it leads to,"
                f" {self.sequence_length}"
            )
        lengths = sorted({phase.sequence_length for phase in self.phases})
        if self.packing == "best_fit" and len(lengths) > 1:
            raise RecipeError(
                f"pretrain.packing: best_fit packs rows of one length, batch_warmup has {lengths}; give its phases"
                f" sequence_length={self.sequence_length}, or pack end_to_end"
            )

    def of_tokens(self, tokens: int) -> BatchesRecipe:
        """Return these settings with a budget of `tokens`."""
        return replace(self, tokens=tokens)

    @property
    def _tokens_left(self) -> int:
        """Tokens of the budget that are left after the batch warm-up. Raise RecipeError for `tokens: auto`."""
        if self.tokens == "auto":
            raise RecipeError("pretrain.tokens: auto becomes a number in the training plan; here a number is needed")
        return self.tokens - sum(phase.steps * phase.global_batch_tokens for phase in self.batch_warmup)

    @property
    def phases(self) -> tuple[BatchPhase, ...]:
        """The phases of the batch warm-up, followed by one phase with the remaining tokens."""
        rest = BatchPhase(
            tokens=self._tokens_left,
            sequence_length=self.sequence_length,
            global_batch_tokens=self.global_batch_tokens,
        )
        return (*self.batch_warmup, rest)

    @property
    def steps(self) -> int:
        """The number of optimizer steps: whole batches within the budget."""
        return sum(phase.steps for phase in self.phases)

    @property
    def step_tokens(self) -> int:
        """The number of tokens in all steps: the budget without the tokens that do not fill a batch."""
        return sum(phase.steps * phase.global_batch_tokens for phase in self.phases)

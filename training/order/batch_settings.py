"""The part of the section `pretrain` that says how tokens become batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPhase:
    """A stretch of training in rows of one length and batches of one size."""

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
        """The number of whole batches in the phase's token budget."""
        return self.tokens // self.global_batch_tokens

    @property
    def rows(self) -> int:
        """Rows in a batch."""
        return self.global_batch_tokens // self.sequence_length


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchesRecipe:
    """The fields of `pretrain` that the training plan is made from: how tokens become rows and batches."""

    tokens: int
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

    @property
    def _tokens_left(self) -> int:
        """Tokens of the budget that are left after the warmup."""
        return self.tokens - sum(phase.steps * phase.global_batch_tokens for phase in self.batch_warmup)

    @property
    def phases(self) -> tuple[BatchPhase, ...]:
        """The phases of the warmup, and the rest."""
        rest = BatchPhase(
            tokens=self._tokens_left,
            sequence_length=self.sequence_length,
            global_batch_tokens=self.global_batch_tokens,
        )
        return (*self.batch_warmup, rest)

    @property
    def steps(self) -> int:
        """Optimizer steps: whole batches within the budget."""
        return sum(phase.steps for phase in self.phases)

    @property
    def step_tokens(self) -> int:
        """Tokens in all steps: the budget less what makes no whole batch."""
        return sum(phase.steps * phase.global_batch_tokens for phase in self.phases)

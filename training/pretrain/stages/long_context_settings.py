"""The recipe section `long_context`: further training of the base model on longer rows, and how it is judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.contract.records import RecipeError, check_above_zero
from training.pretrain.models.shape import RotaryScaling
from training.pretrain.watch.keep_settings import KeptStatesRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class LongContextRecipe:
    """Settings for training the base model further on longer rows; no such training if `tokens` is None.

    All other settings are those of `pretrain`. Afterwards the model must find sentences that were hidden in
    held-out text (needles), and its held-out bits per byte at the base model's length are compared with those
    before the training.
    """

    tokens: int | None = None  # the whole budget; None: no further training
    sequence_length: int | None = None  # needed if `tokens` is given, as is the next
    global_batch_tokens: int | None = None
    rope_theta: float | None = None  # None: inherit from `model`
    rope_scaling: RotaryScaling = field(default_factory=RotaryScaling)  # kind none: inherit from `model`
    across_documents: bool = False  # treat the documents of a row as one text, so that they see each other
    learning_rate: float | None = None  # None: inherit from `pretrain`
    muon_learning_rate: float | None = None
    min_loss_fall: float = -0.1  # gate, nats per token; below 0: the loss may even rise a little
    max_short_rise: float = 0.02  # gate: share by which bits per byte at the base model's length may rise
    needles: int = 8  # hidden sentences at each depth
    needle_depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)  # 0: at the beginning
    needle_choices: int = 5  # values to choose from, the hidden one included
    min_needle_score: float = 0.5  # gate: share of needles found at the new length
    keep: KeptStatesRecipe = field(default_factory=KeptStatesRecipe)
    seed: int = 0

    def __post_init__(self) -> None:
        self.keep.check_steps("long_context.keep")
        check_above_zero(self, "long_context", "tokens", "sequence_length", "global_batch_tokens")
        check_above_zero(self, "long_context", "rope_theta", "learning_rate", "muon_learning_rate")
        if self.tokens and not (self.sequence_length and self.global_batch_tokens):
            raise RecipeError(f"long_context: tokens={self.tokens} needs sequence_length and global_batch_tokens too")
        if min(self.needles, self.needle_choices - 1, len(self.needle_depths)) < 1:
            raise RecipeError(
                f"long_context: needles={self.needles} (at least 1), needle_choices={self.needle_choices} (at least 2),"
                f" needle_depths={list(self.needle_depths)} (at least one)"
            )
        if not all(0 <= depth <= 1 for depth in self.needle_depths):
            raise RecipeError(f"long_context.needle_depths={list(self.needle_depths)}; from 0 (beginning) to 1 (end)")
        _ = self.kept_steps  # checks itself

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """The steps after which the model is kept. Raise RecipeError if the training does not reach them."""
        return self.keep.steps_of(self.steps, "long_context.keep") if self.keep.is_asked and self.tokens else ()

    @property
    def steps(self) -> int:
        """Number of optimizer steps: the whole batches within the budget."""
        return (self.tokens or 0) // (self.global_batch_tokens or 1)

"""The settings of a training objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from training.contract.parts.outside import OutsidePart, PartsOf
from training.contract.records import RecipeError
from training.pretrain.objectives.rewriting import KIND, Rewriting, outside_objective

OBJECTIVES = ("causal", "fill_in_the_middle", "masked", "prefix", "span_corruption")

FILL_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")

MASK_TOKEN = "<|mask|>"


def sentinel_token(number: int) -> str:
    """Return the token that replaces span `number` (from 0) of a corrupted text."""
    return f"<|sentinel_{number}|>"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveRecipe:
    """The training objective: which tokens are given and which are predicted.

    `objective.py` implements the kinds and cites the papers. The tokens that a kind needs must be among
    `tokenizer.special_tokens`.
    """

    kind: str = "causal"  # one of OBJECTIVES, or a part from outside
    fill_rate: float = 0.5  # fill_in_the_middle: share of documents that are rearranged
    suffix_first_rate: float = 0.5  # … and of these, share that begin with the suffix
    noise_fraction: float = 0.15  # masked, span_corruption: share of tokens
    mean_span: float = 3.0  # span_corruption: tokens
    across_documents: bool = False  # causal: treat the documents of a row as one text, so that they see each other
    # Of an objective from outside: `from`, and its settings.
    parts: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        self._parts.check_used([self.kind], OBJECTIVES)
        _ = self.outside  # checks itself
        if self.across_documents and self.kind != "causal":
            raise RecipeError(f"pretrain.objective.across_documents: {self.kind} rewrites each document by itself")
        for name in ("fill_rate", "suffix_first_rate", "noise_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise RecipeError(f"pretrain.objective.{name}={getattr(self, name)}; it must lie between 0 and 1")
        if self.mean_span < 1:
            raise RecipeError(f"pretrain.objective.mean_span={self.mean_span}; it must be at least 1")

    @property
    def _parts(self) -> PartsOf:
        return PartsOf("pretrain.objective", self.parts)

    @property
    def outside(self) -> tuple[Rewriting, Any] | None:
        """The objective from outside with its settings; None for Pedigree's own."""
        return None if self.kind in OBJECTIVES else outside_objective(self.kind, self._parts, OBJECTIVES)

    def outside_parts(self) -> dict[str, OutsidePart]:
        """Return the objective by name if it is not Pedigree's."""
        if self.kind in OBJECTIVES:
            return {}
        return {self.kind: self._parts.find(KIND, self.kind, OBJECTIVES, "kind")}

    @property
    def is_causal(self) -> bool:
        """Whether every position sees only itself and earlier positions."""
        if (own := self.outside) is not None:
            return own[0].is_causal
        return self.kind in ("causal", "fill_in_the_middle")

    @property
    def continues_text(self) -> bool:
        """Whether the objective trains the model to continue a text (next-token prediction)."""
        if (own := self.outside) is not None:
            return own[0].continues_text
        return self.kind in ("causal", "fill_in_the_middle", "prefix")

    def special_tokens(self) -> tuple[str, ...]:
        """Return the special tokens that the objective needs in the vocabulary."""
        if (own := self.outside) is not None:
            return own[0].special_tokens
        if self.kind == "fill_in_the_middle":
            return FILL_TOKENS
        if self.kind == "masked":
            return (MASK_TOKEN,)
        return (sentinel_token(0), sentinel_token(1)) if self.kind == "span_corruption" else ()

    def inexpressible(self) -> tuple[str, ...]:
        """Return why no class of transformers can run a model trained with this objective; empty if one can."""
        return () if self.is_causal else (f"pretrain.objective {self.kind}: the classes see only what comes before",)

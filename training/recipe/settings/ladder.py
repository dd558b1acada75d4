"""The recipe section `ladder`: small models from which the loss of larger ones is predicted."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError, check_above_zero
from training.contract.user_input.names import check_name

MIN_RUNGS = 6  # fewest rungs that a scaling ladder may have


@dataclass(frozen=True, kw_only=True, slots=True)
class RungRecipe:
    """One small model of a scaling ladder: its shape, its token budget, and its changes to the section `pretrain`."""

    name: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp_width: int
    tokens: int
    # None: inherit from `pretrain`
    global_batch_tokens: int | None = None
    learning_rate: float | None = None
    muon_learning_rate: float | None = None

    def __post_init__(self) -> None:
        check_above_zero(
            self, f"ladder.rungs.{self.name}", "global_batch_tokens", "learning_rate", "muon_learning_rate"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderRecipe:
    """Small models on the recipe's data, from which the loss of larger models is predicted (arXiv 2203.15556)."""

    rungs: tuple[RungRecipe, ...] = ()
    bootstrap: int = 200  # bootstrap resamples of the rungs for each confidence interval
    seed: int = 0

    def __post_init__(self) -> None:
        names = [rung.name for rung in self.rungs]
        for name in names:
            check_name(name, "ladder.rungs: name")
        if len(set(names)) != len(names):
            raise RecipeError(f"ladder.rungs: names must be different, got {', '.join(names)}")
        if 0 < len(names) < MIN_RUNGS:
            raise RecipeError(f"ladder.rungs: {len(names)} of them; a fit of five numbers needs at least {MIN_RUNGS}")

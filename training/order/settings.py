"""The section `mixture`."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class MixturePhaseRecipe:
    """Other weights from a share of the training tokens on: an annealing on the best sources, or a curriculum."""

    start: float  # share of the tokens before it, between 0 and 1
    weights: dict[str, float]

    def __post_init__(self) -> None:
        if not 0 < self.start < 1:
            raise RecipeError(f"mixture.phases: start={self.start}; it must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureRecipe:
    """Which share of the training tokens each source gives. Weights are normalized; empty means by size.

    `weights` hold up to the first of `phases`, each of which names the weight of every source anew.
    """

    weights: dict[str, float] = field(default_factory=dict)
    phases: tuple[MixturePhaseRecipe, ...] = ()
    max_epochs: float = 4.0  # of any source; more is refused
    source_epochs: dict[str, float] = field(default_factory=dict)  # of these sources, in place of max_epochs
    held_out_fraction: float = 0.01  # of documents, chosen by their id

    def __post_init__(self) -> None:
        starts = [phase.start for phase in self.phases]
        if starts != sorted(set(starts)):
            raise RecipeError(f"mixture.phases: start={starts}; each must be later than the one before it")

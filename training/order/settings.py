"""The recipe section `mixture`: the share of each source in the training tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.contract.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class MixturePhaseRecipe:
    """New weights of the sources from a point of the training on, for annealing on the best sources or a curriculum."""

    start: float  # where the phase begins, as a share of the training tokens, between 0 and 1
    weights: dict[str, float]

    def __post_init__(self) -> None:
        if not 0 < self.start < 1:
            raise RecipeError(f"mixture.phases: start={self.start}; it must lie between 0 and 1")
        if not self.weights:
            raise RecipeError("mixture.phases: weights: empty; each phase gives the weights of all sources again")
        _check_some("mixture.phases: weights", self.weights)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureRecipe:
    """The share of the training tokens that each source gives.

    Weights are normalized; empty weights mean shares by size. `weights` hold until the first of `phases` begins, and
    each phase gives the weights of all sources again.
    """

    weights: dict[str, float] = field(default_factory=dict)
    phases: tuple[MixturePhaseRecipe, ...] = ()
    max_epochs: float = 4.0  # most epochs of any source; a plan with more is refused
    source_epochs: dict[str, float] = field(default_factory=dict)  # most epochs of these sources, instead of max_epochs
    held_out_fraction: float = 0.01  # share of the documents that are held out, chosen by their ids
    held_out_tokens: int = 4_000_000  # most of their tokens that a look in training reads, the same in every look

    def __post_init__(self) -> None:
        if self.held_out_tokens < 1:
            raise RecipeError(
                f"mixture.held_out_tokens={self.held_out_tokens}; it must be at least 1. To hold out nothing, set"
                " mixture.held_out_fraction: 0"
            )
        _check_some("mixture.weights", self.weights)
        listed = [sorted(weights) for weights in (self.weights, *(phase.weights for phase in self.phases)) if weights]
        if any(names != listed[0] for names in listed):
            told = " and ".join(dict.fromkeys(", ".join(names) for names in listed))
            raise RecipeError(f"mixture.phases: weights of {told}; name the same sources each time, 0 leaves one out")
        starts = [phase.start for phase in self.phases]
        if starts != sorted(set(starts)):
            raise RecipeError(f"mixture.phases: start={starts}; each must be later than the one before it")


def _check_some(name: str, weights: dict[str, float]) -> None:
    if weights and not any(weights.values()):
        raise RecipeError(f"{name}={weights}; at least one must be above 0, or nothing is trained on")

"""Optimizers from the user's own environment. Their errors are raised with the optimizer's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from training.contract.parts.outside import PartFailed, PartsOf, guarded, named
from training.pretrain.optim.optimizer import Optimizer

if TYPE_CHECKING:
    import torch

    from training.pretrain.optim.settings import UpdateRecipe
    from training.pretrain.optim.weights import Weights

KIND = "optimizers"


def outside_optimizer(name: str, parts: PartsOf, known: tuple[str, ...]) -> Optimizer:
    """Return the optimizer from outside that `pretrain.optimizer` names. Raise RecipeError if it is none."""
    found = parts.load(KIND, name, known, field="optimizer", cls=Optimizer)
    who = f"optimizer {name}"

    def make(weights: Weights, recipe: UpdateRecipe, settings: Any) -> Mapping[str, torch.optim.Optimizer]:
        with named(who, "cannot be made"):
            made = found.make(weights, recipe, settings)
        return _checked(who, weights, made)

    return replace(found, make=make, numbers=guarded(who, "does not say the size of its state", found.numbers))


def _checked(who: str, weights: Weights, made: Any) -> Mapping[str, torch.optim.Optimizer]:
    """Return the torch optimizers that a part made. Errors in their steps are raised with the part's name.

    Raise PartFailed if they are something else, or do not update each weight exactly once.
    """
    import torch

    if not isinstance(made, Mapping) or not made:
        raise PartFailed(f"{who} made {made!r}; it must return torch optimizers by name")
    for name, one in made.items():
        if not isinstance(one, torch.optim.Optimizer) or name == "average":
            raise PartFailed(f"{who} made {type(one).__name__} as {name!r}; it must be a torch.optim.Optimizer")
    held = [id(weight) for one in made.values() for group in one.param_groups for weight in group["params"]]
    wanted = [id(weights.own(parameter)) for parameter in weights.model.parameters()]
    if sorted(held) != sorted(wanted):
        raise PartFailed(
            f"{who} updates {len(held)} weights, {len(set(held) & set(wanted))} of the model's {len(wanted)}; each must"
            " be updated once"
        )
    for one in made.values():
        one.step = guarded(who, "failed in a step", one.step)  # of this object only
    return made

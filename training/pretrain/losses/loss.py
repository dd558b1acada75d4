"""The record that a loss declares, and what its functions get and give.

Imports torch only where a loss is computed, because recipes are read without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from training.contract.parts.outside import NoSettings, PartFailed, PartsOf
from training.order.loss_mask import IGNORED
from training.pretrain.losses.settings import LossRecipe

if TYPE_CHECKING:
    from torch import Tensor

KIND = "losses"


class LogitRows(NamedTuple):
    """Some positions of a batch: their logits `[N, V]` after the soft-cap, and the tokens to predict, int64 `[N]`.

    A target is IGNORED where nothing is to be predicted. `taught` has the teacher's logits in fp32, if there is one.
    """

    logits: Tensor
    targets: Tensor
    taught: Tensor | None = None


class Gradients(NamedTuple):
    """The values of a loss `[N]`, the negative log-likelihoods `[N]`, and the gradients by the logits `[N, V]`: fp32.

    The gradients are those of the sum of the values, each times the weight of its position.
    """

    values: Tensor
    nats: Tensor
    gradients: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """The declaration of a loss.

    `values(rows, recipe, settings)` returns the loss of each position, fp32 `[N]`, finite also where the target is
    IGNORED; the logits are in fp32, and torch differentiates it. `gradients(rows, weights, recipe, settings)`
    computes the same by hand, to be faster where torch compiles nothing, from logits in the number format of the
    pass; None: there is no such form. `settings` is the record class of the loss's own settings.
    """

    values: Callable[[LogitRows, LossRecipe, Any], Tensor]
    gradients: Callable[[LogitRows, Tensor, LossRecipe, Any], Gradients] | None = None
    settings: type = NoSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenLoss:
    """A recipe's loss with the settings that its functions get. `who` names one from outside in errors."""

    part: Loss
    recipe: LossRecipe
    settings: Any
    who: str = ""


def nats(rows: LogitRows) -> Tensor:
    """Return the negative log-likelihood of each target in nats, fp32 `[N]`; 0 for IGNORED."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(rows.logits.float(), rows.targets, reduction="none", ignore_index=IGNORED)


def outside_loss(name: str, parts: PartsOf, known: tuple[str, ...]) -> Loss:
    """Return the loss from outside that `pretrain.loss` names. Raise RecipeError if there is none.

    Its functions raise PartFailed for what has another shape than they must return.
    """
    found = parts.load(KIND, name, known, field="loss", cls=Loss)
    by_hand = found.gradients

    def values(rows: LogitRows, recipe: LossRecipe, settings: Any) -> Tensor:
        made = found.values(rows, recipe, settings)
        _check_shapes(name, [made], [rows.targets])
        return made

    def gradients(rows: LogitRows, weights: Tensor, recipe: LossRecipe, settings: Any) -> Gradients:
        assert by_hand is not None, "there is no such form without it"
        made = by_hand(rows, weights, recipe, settings)
        _check_shapes(name, made, [rows.targets, rows.targets, rows.logits])
        return made

    return replace(found, values=values, gradients=by_hand and gradients)


def _check_shapes(name: str, made: Sequence[Tensor], like: Sequence[Tensor]) -> None:
    given, wanted = ([tuple(one.shape) for one in tensors] for tensors in (made, like))
    if given != wanted:
        raise PartFailed(f"loss {name} returned the shapes {given}; they must be {wanted}")

"""The declaration of a training objective from the user's own environment. Its errors have the objective's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from training.contract.parts.outside import NoSettings, PartFailed, PartsOf, named
from training.order.loss_mask import IGNORED

if TYPE_CHECKING:
    from training.pretrain.objectives.rewritten import Batch, Draws

KIND = "objectives"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenIds:
    """The tokens that an objective may write: the special ones by name, the end of a text, and the number of all."""

    ids: Mapping[str, int]
    eos_id: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewriting:
    """An objective: `rewrite` changes one document of a row in place, before the model sees it.

    It gets the document as a `Batch` of views (`tokens`, `targets` and `documents`, and `prefix` if not `is_causal`),
    the random numbers of this row, the vocabulary and the settings. A target is at the position that predicts it.
    `special_tokens` must be in the recipe's tokenizer. `continues_text`: the model can still write texts.
    """

    rewrite: Callable[[Batch, Draws, TokenIds, Any], None]
    settings: type = NoSettings
    special_tokens: tuple[str, ...] = ()
    is_causal: bool = True
    continues_text: bool = True


def outside_objective(name: str, parts: PartsOf, known: tuple[str, ...]) -> tuple[Rewriting, Any]:
    """Return the objective from outside that `pretrain.objective.kind` names, with its settings.

    Raise RecipeError if there is none.
    """
    found = parts.load(KIND, name, known, field="kind", cls=Rewriting)
    return found, parts.settings(name, found.settings)


def rewrite(name: str, found: tuple[Rewriting, Any], part: Batch, draws: Draws, vocabulary: TokenIds) -> None:
    """Let an objective from outside change one document in place.

    Raise PartFailed, with its name, for what it raises and for tokens or targets that are none.
    """
    from training.pretrain.objectives.rewritten import NO_DOCUMENT  # with numpy, which recipes are read without

    who, (objective, settings) = f"objective {name}", found
    first = int(part.documents[0])
    with named(who, "failed"):
        objective.rewrite(part, draws, vocabulary, settings)
    for what, values in (("token", part.tokens), ("target", part.targets[part.targets != IGNORED])):
        wrong = (values < 0) | (values >= vocabulary.size)
        if wrong.any():
            raise PartFailed(f"{who} wrote the {what} {int(values[wrong][0])}; there are {vocabulary.size} tokens")
    if not ((part.documents == first) | (part.documents == NO_DOCUMENT)).all():
        raise PartFailed(f"{who} moved a position to another document; it may only take one out (NO_DOCUMENT)")

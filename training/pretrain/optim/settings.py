"""The fields of the recipe section `pretrain` from which an optimizer is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateRecipe:
    """The fields of `pretrain` that every optimizer may read. Settings of only one optimizer are in its own record."""

    learning_rate: float
    muon_learning_rate: float
    beta1: float
    beta2: float
    momentum: float
    weight_decay: float
    decay_embeddings: bool

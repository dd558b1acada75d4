"""The part of the section `pretrain` that an optimizer is made from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateRecipe:
    """The fields of `pretrain` that any optimizer may read. What only one of them has belongs to its own settings."""

    learning_rate: float
    muon_learning_rate: float
    beta1: float
    beta2: float
    momentum: float
    weight_decay: float
    decay_embeddings: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class NoSettings:
    """Settings of an optimizer that has none of its own."""

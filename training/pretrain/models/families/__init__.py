"""Model families by transformers' `model_type`; each family has one file with a `FAMILY` in it."""

from __future__ import annotations

from training.parts.packages import parts_in
from training.pretrain.models.family import Family
from training.pretrain.models.shape import ModelConfig

FAMILIES: dict[str, Family] = {name: part.FAMILY for name, part in parts_in(__name__).items()}


def family_of(config: ModelConfig) -> str:
    """Return the name of the family that a shape belongs to."""
    (name,) = (name for name, family in FAMILIES.items() if family.has(config))
    return name


def inexpressible(config: ModelConfig) -> tuple[str, ...]:
    """Return the reasons why no class of transformers can run the model; empty if one can."""
    found = []
    if config.logit_softcap:
        found.append("logit_softcap: none of the classes caps logits")
    if config.activation != "swiglu":
        found.append(f"activation {config.activation}: the classes' MLPs are gated")
    return (*found, *FAMILIES[family_of(config)].why_not(config))

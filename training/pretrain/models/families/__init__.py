"""Model families by the name that transformers gives them, one file each, with a `FAMILY` in it."""

from __future__ import annotations

from training.parts import parts_in
from training.pretrain.models.family import Family
from training.pretrain.models.shape import ModelConfig

FAMILIES: dict[str, Family] = {name: part.FAMILY for name, part in parts_in(__name__).items()}


def family_of(config: ModelConfig) -> str:
    """The name of the family that a shape belongs to."""
    (name,) = (name for name, family in FAMILIES.items() if family.has(config))
    return name


def inexpressible(config: ModelConfig) -> tuple[str, ...]:
    """Why no class of transformers is this model; empty if one is."""
    found = []
    if config.logit_softcap:
        found.append("logit_softcap: none of the classes caps logits")
    if config.activation != "swiglu":
        found.append(f"activation {config.activation}: the classes' MLPs are gated")
    return (*found, *FAMILIES[family_of(config)].why_not(config))

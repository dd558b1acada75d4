"""The records that a model family's file declares. Imports no torch, because recipes are read without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.pretrain.models.shape import ExpertLayers, ModelConfig, RotaryScaling
from training.records import write_record

Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A known shape.

    `model` sets every field of a recipe's `model`, so that an extended recipe's values do not remain.
    """

    vocab_size: int
    parameters: int
    model: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A model family: decoders that one class of transformers runs, identified by its `model_type`.

    `has` says whether a shape belongs to this family and not to another. `why_not` returns what the class cannot run of
    such a shape. `fields` returns the fields of `config.json` that only this family has; `read` turns them back into
    fields of a shape.
    """

    class_name: str  # in transformers, without ForCausalLM
    has: Callable[[ModelConfig], bool]
    why_not: Callable[[ModelConfig], list[str]]
    fields: Callable[[ModelConfig], Fields]
    read: Callable[[Fields], Fields]
    presets: dict[str, Preset]


def preset(vocab_size: int, parameters: int, **fields: Any) -> Preset:
    """Return a preset that has the recipe's defaults for all other fields."""
    plain = {
        "head_width": None,
        "rope_theta": 10_000.0,
        "rope_scaling": write_record(RotaryScaling()),
        "norm_epsilon": 1e-5,
        "qk_norm": False,
        "tied_embeddings": True,
        "activation": "swiglu",
        "window": None,
        "window_pattern": ["full"],
        "logit_softcap": None,
        "experts": write_record(ExpertLayers()),
    }
    return Preset(vocab_size=vocab_size, parameters=parameters, model={**plain, **fields})


def sizes(width: int, layers: int, heads: int, kv_heads: int, mlp_width: int) -> dict[str, int]:
    """Return width, layers, heads, key-value heads and MLP width, as published tables give them, by field name."""
    return {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "mlp_width": mlp_width}

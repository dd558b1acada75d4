"""What the file of a model family declares. No torch: a recipe is read by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.pretrain.models.shape import ExpertLayers, ModelConfig, RotaryScaling
from training.records import write_record

Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A shape. `model` has every field of a recipe's `model`, so that nothing of an extended recipe shines through."""

    vocab_size: int
    parameters: int
    model: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A model family: decoders that one class of transformers runs, named by its `model_type`.

    `has` says whether a shape belongs to it rather than to another family, `why_not` what of such a shape the class
    cannot run. `fields` are those of `config.json` that only this family has; `read` gives the fields of a shape that
    they stand for.
    """

    class_name: str  # in transformers, without ForCausalLM
    has: Callable[[ModelConfig], bool]
    why_not: Callable[[ModelConfig], list[str]]
    fields: Callable[[ModelConfig], Fields]
    read: Callable[[Fields], Fields]
    presets: dict[str, Preset]


def preset(vocab_size: int, parameters: int, **fields: Any) -> Preset:
    """A preset whose other fields are the recipe's defaults."""
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
    """The five numbers that every published table has."""
    return {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "mlp_width": mlp_width}

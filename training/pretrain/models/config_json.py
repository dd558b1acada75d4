"""Read the shape of a model from the `config.json` of its folder, as transformers writes it. No torch.

`training/pretrain/models/export.py` writes such files.
"""

from __future__ import annotations

from typing import Any

from training.job import DataError
from training.pretrain.models.families import FAMILIES, family_of_type
from training.pretrain.models.family import Family
from training.pretrain.models.shape import ModelConfig, RotaryScaling

ROPE_TYPES = {"none": "default", "linear": "linear", "yarn": "yarn", "llama3": "llama3"}


def read_config(data: dict[str, Any]) -> ModelConfig:
    """Return the shape that a `config.json` of one of the families describes.

    Raise DataError if this package lacks a feature.
    """
    name = str(data.get("model_type"))
    family = family_of_type(name)
    if family is None:
        raise DataError(
            f"config.json: model_type {name!r}; readable are {', '.join(FAMILIES)}, and what a package registers"
        )
    if data.get("attention_bias") or data.get("mlp_bias") or data.get("hidden_act", "silu") != "silu":
        raise DataError("config.json: biases and activations other than silu cannot be read")
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    return ModelConfig(
        vocab_size=data["vocab_size"],
        width=data["hidden_size"],
        layers=data["num_hidden_layers"],
        heads=data["num_attention_heads"],
        kv_heads=data.get("num_key_value_heads") or data["num_attention_heads"],
        head_width=data.get("head_dim") or 0,
        mlp_width=data["intermediate_size"],
        max_length=data["max_position_embeddings"],
        rope_theta=rope.get("rope_theta") or data.get("rope_theta", 10_000.0),
        rope_scaling=_read_scaling(rope),
        tied_embeddings=data.get("tie_word_embeddings", False),
        norm_epsilon=data["rms_norm_eps"],
        **_own_fields(name, family, data),
    )


def _own_fields(name: str, family: Family, data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a shape that a family reads, with its own settings and its name if it has its own layers."""
    fields = family.read(data)
    if family.layers is None:
        return fields
    settings = fields.pop("settings", {})
    return {**fields, "family": name, **({"parts": {name: settings}} if settings else {})}


def _read_scaling(rope: dict[str, Any]) -> RotaryScaling:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES.values() or rope.get("attention_factor") or rope.get("mscale"):
        raise DataError(f"config.json: rotary positions {rope}; readable are {', '.join(ROPE_TYPES.values())}")
    if kind == "default":
        return RotaryScaling()
    names = {
        "original_max_position_embeddings": "original_length",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
    }
    given = {ours: rope[theirs] for theirs, ours in names.items() if rope.get(theirs) is not None}
    return RotaryScaling(kind=kind, factor=rope["factor"], **given)

"""Read the shape of a model from the `config.json` of its folder, in the form of transformers or its own. No torch.

`training/pretrain/models/export.py` writes such files.
"""

from __future__ import annotations

from typing import Any

from training.contract.job import DataError
from training.contract.model_files import usually_named
from training.contract.records import read_record
from training.pretrain.models.borrowed import BORROWED
from training.pretrain.models.families import FAMILIES, family_of_type
from training.pretrain.models.family import Family
from training.pretrain.models.rotary_json import given_rotary, read_rotary
from training.pretrain.models.shape import ModelConfig

OWN_TYPE = "pedigree_decoder"  # the model_type of a model that no class of transformers can run
OWN_NAMES = {"tied_embeddings": "tied", "norm_epsilon": "norm_eps"}  # fields with another name in such a config.json


def read_either_config(data: dict[str, Any]) -> ModelConfig:
    """Return the shape that a `config.json` of a family, or of this package's own form, describes."""
    if data.get("model_type") != OWN_TYPE:
        return read_config(data)
    return read_record(ModelConfig, renamed(data["shape"], {name: own for own, name in OWN_NAMES.items()}))


def renamed(data: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a `config.json` with these names in the place of their own."""
    return {names.get(name, name): value for name, value in data.items()}


def read_config(data: dict[str, Any]) -> ModelConfig:
    """Return the shape that a `config.json` of one of the families describes.

    Raise DataError if this package lacks a feature.
    """
    name = str(data.get("model_type"))
    family = family_of_type(name)
    if family is None and {"text_config", "vision_config", "audio_config"} & data.keys():
        raise DataError(
            f"config.json: model_type {name!r} reads images or sound beside text; take a model of text alone, such as"
            " a smaller one of its series, or save its language model by itself with transformers"
        )
    if family is None:
        raise DataError(
            f"config.json: model_type {name!r}; readable are {', '.join(sorted(FAMILIES | BORROWED))}, and what a"
            " package registers"
        )
    if family is BORROWED.get(name):
        return ModelConfig(**family.read(usually_named(data)), family=name)
    if data.get("attention_bias") or data.get("mlp_bias") or data.get("hidden_act", "silu") != "silu":
        raise DataError("config.json: biases and activations other than silu cannot be read")
    own = _own_fields(name, family, data)
    rotary = {} if "rope_scaling" in own else read_rotary(given_rotary(data), data)
    common: dict[str, Any] = {
        "vocab_size": data["vocab_size"],
        "width": data["hidden_size"],
        "layers": data["num_hidden_layers"],
        "heads": data["num_attention_heads"],
        "kv_heads": data.get("num_key_value_heads") or data["num_attention_heads"],
        "head_width": data.get("head_dim") or 0,
        "mlp_width": data["intermediate_size"],
        "max_length": data["max_position_embeddings"],
        "tied_embeddings": data.get("tie_word_embeddings", False),
        "norm_epsilon": data["rms_norm_eps"],
    }
    return ModelConfig(**{**common, **rotary, **own})


def _own_fields(name: str, family: Family, data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a shape that a family reads, with its own settings and its name if it has its own layers."""
    fields = family.read(data)
    if family.layers is None:
        return fields
    settings = fields.pop("settings", {})
    return {**fields, "family": name, **({"parts": {name: settings}} if settings else {})}

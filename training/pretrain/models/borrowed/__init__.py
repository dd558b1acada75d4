"""Families whose layers are transformers' own: adopted, fine-tuned, aligned, scored and exported, never pretrained.

What a recipe needs of them are the sizes in `config.json`. A family from outside of the same name takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from training.contract.records import RecipeError
from training.pretrain.models.family import Family, Fields, Layers, layer_weights
from training.pretrain.models.shape import ModelConfig

if TYPE_CHECKING:
    from training.pretrain.models.decoder import Block

BY_TRANSFORMERS = "is run by transformers' own class alone"


def _read(data: Fields, *, tied: bool) -> Fields:
    """Return the sizes in a `config.json` with the usual names; `tied` is the class's default."""
    width, heads = data["hidden_size"], data["num_attention_heads"]
    return {
        "vocab_size": data["vocab_size"],
        "width": width,
        "layers": data["num_hidden_layers"],
        "heads": heads,
        "kv_heads": data.get("num_key_value_heads") or heads,
        "head_width": data.get("head_dim") or 0,
        "mlp_width": data.get("intermediate_size") or 4 * width,
        "max_length": data["max_position_embeddings"],
        "tied_embeddings": data.get("tie_word_embeddings", tied),
    }


def _ungated(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each weight in a layer without a gate in its MLP, and with biases."""
    for name, shape in layer_weights(config, layer):
        if name != "mlp.gate":
            yield name, shape
            yield f"{name}_bias", shape[:1]


def _make(class_name: str, config: ModelConfig, layer: int) -> Block:
    raise RecipeError(f"model.family: {class_name} {BY_TRANSFORMERS} and cannot be pretrained")


def _borrowed(class_name: str, *, tied: bool = True, gated: bool = True) -> Family:
    """Return a family by its class. Its layers serve to count weights, to about one in a hundred."""
    return Family(
        class_name=class_name,
        read=partial(_read, tied=tied),
        layers=Layers(make=partial(_make, class_name), weights=layer_weights if gated else _ungated),
    )


BORROWED: dict[str, Family] = {
    "gemma": _borrowed("Gemma"),
    "gemma2": _borrowed("Gemma2"),
    "gemma3_text": _borrowed("Gemma3"),
    "gpt2": _borrowed("GPT2", gated=False),
    "gpt_neox": _borrowed("GPTNeoX", tied=False, gated=False),
    "granite": _borrowed("Granite", tied=False),
    "olmo": _borrowed("Olmo", tied=False),
    "phi": _borrowed("Phi", tied=False, gated=False),
    "phi3": _borrowed("Phi3", tied=False),
    "smollm3": _borrowed("SmolLM3"),
}

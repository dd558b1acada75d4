"""The Qwen2 family (arXiv 2407.10671; Qwen2.5: arXiv 2412.15115): layers of Llama with biases of queries, keys, values.

Windows are those of Qwen3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from training.pretrain.models.families import qwen3
from training.pretrain.models.family import Family, Fields, Layers, NamedShapes, Preset, layer_weights, preset, sizes
from training.pretrain.models.shape import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

    from training.pretrain.models.decoder import Block


def why_not(config: ModelConfig) -> list[str]:
    """Return which features of the shape Qwen2 does not have; empty if it has all."""
    return [name for name, there in (("qk_norm", config.qk_norm), ("experts", config.experts.count)) if there]


def make(config: ModelConfig, layer: int) -> Block:
    """Return layer `layer` of a decoder."""
    from training.pretrain.models.families.qwen2.layer import QwenBlock

    return QwenBlock(config, layer)


def weights(config: ModelConfig, layer: int) -> NamedShapes:
    """Yield name and shape of each weight in a layer: those of Llama, and one bias."""
    for name, shape in layer_weights(config, layer):
        yield name, shape
        if name == "attention.query_key_value":
            yield f"{name}_bias", shape[:1]


def names(block: Block) -> Iterable[tuple[str, Tensor]]:
    """Yield each weight, or a view of it, with its name inside a layer of transformers' class."""
    from training.pretrain.models.families.qwen2.layer import bias_views
    from training.pretrain.models.layer_views import layer_views

    yield from layer_views(block)
    yield from bias_views(block)


def read(data: Fields) -> Fields:
    """Return the window and its pattern."""
    return qwen3.read(data) | {"qk_norm": False}


def _qwen_2_5(parameters: int, numbers: dict[str, int], *, max_length: int, tied: bool = True) -> Preset:
    """Return the preset of a Qwen2.5 base model as it was published."""
    return preset(
        151_936 if tied else 152_064,
        parameters,
        **numbers,
        max_length=max_length,
        rope_theta=1_000_000.0,
        norm_epsilon=1e-6,
        tied_embeddings=tied,
        family="qwen2",
    )


FAMILY = Family(
    class_name="Qwen2",
    why_not=why_not,
    fields=qwen3.fields,
    read=read,
    layers=Layers(make=make, weights=weights, names=names),
    presets={
        "qwen2.5-0.5b": _qwen_2_5(494_032_768, sizes(896, 24, 14, 2, 4864), max_length=32_768),
        "qwen2.5-1.5b": _qwen_2_5(1_543_714_304, sizes(1536, 28, 12, 2, 8960), max_length=131_072),
        "qwen2.5-3b": _qwen_2_5(3_085_938_688, sizes(2048, 36, 16, 2, 11_008), max_length=32_768),
        "qwen2.5-7b": _qwen_2_5(7_615_616_512, sizes(3584, 28, 28, 4, 18_944), max_length=131_072, tied=False),
    },
)

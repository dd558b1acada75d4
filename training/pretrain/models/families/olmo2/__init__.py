"""The OLMo 2 family (arXiv 2501.00656): norms after attention and MLP, and a QK-norm over all heads together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from training.pretrain.models.family import Family, Fields, Layers, NamedShapes, Preset, layer_weights, preset, sizes
from training.pretrain.models.shape import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

    from training.pretrain.models.decoder import Block


def why_not(config: ModelConfig) -> list[str]:
    """Return which features of the shape OLMo 2 does not have; empty if it has all."""
    found = [] if config.qk_norm else ["layers without qk_norm"]
    found += ["window"] if config.window else []
    return found + (["experts"] if config.experts.count else [])


def make(config: ModelConfig, layer: int) -> Block:
    """Return layer `layer` of a decoder."""
    from training.pretrain.models.families.olmo2.layer import OlmoBlock

    return OlmoBlock(config, layer)


def weights(config: ModelConfig, layer: int) -> NamedShapes:
    """Yield name and shape of each weight in a layer: the gains of queries and keys are as wide as all their heads."""
    widths = {"attention.query_norm": config.attention_width, "attention.key_norm": config.kv_heads * config.head_width}
    for name, shape in layer_weights(config, layer):
        yield name, (widths[name],) if name in widths else shape


def kept(config: ModelConfig, layer: int) -> int:
    """Return how many more numbers for each token a layer keeps for the backward pass than a layer of Qwen3.

    They are the inputs of attention and MLP beside their normed outputs; of the scales of queries and keys there is one
    each in place of one for each head.
    """
    del layer
    return 2 * config.width + 2 - config.heads - config.kv_heads


def names(block: Block) -> Iterable[tuple[str, Tensor]]:
    """Yield each weight with its name inside a layer of transformers' class."""
    from training.pretrain.models.layer_views import layer_views

    for name, view in layer_views(block):
        yield _NAMES.get(name, name), view


_NAMES = {
    "input_layernorm.weight": "post_attention_layernorm.weight",
    "post_attention_layernorm.weight": "post_feedforward_layernorm.weight",
}


def read(data: Fields) -> Fields:
    """Return QK-norm, which every model of the family has."""
    del data
    return {"qk_norm": True}


def _olmo_2(parameters: int, numbers: dict[str, int]) -> Preset:
    """Return the preset of an OLMo 2 base model."""
    return preset(
        100_352,
        parameters,
        **numbers,
        max_length=4096,
        rope_theta=500_000.0,
        norm_epsilon=1e-6,
        qk_norm=True,
        tied_embeddings=False,
        family="olmo2",
    )


LAYERS = Layers(make=make, weights=weights, kept=kept, names=names, begin_as_identity=False)
FAMILY = Family(
    class_name="Olmo2",
    why_not=why_not,
    read=read,
    layers=LAYERS,
    presets={
        "olmo-2-1b": _olmo_2(1_484_916_736, sizes(2048, 16, 16, 16, 8192)),
        "olmo-2-7b": _olmo_2(7_298_617_344, sizes(4096, 32, 32, 32, 11_008)),
        "olmo-2-13b": _olmo_2(13_716_198_400, sizes(5120, 40, 40, 40, 13_824)),
        "olmo-2-32b": _olmo_2(32_234_279_936, sizes(5120, 64, 40, 8, 27_648)),
    },
)

"""The weights of a layer as views that have the names of transformers' Llama layout."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from training.pretrain.models.decoder import MLP, Attention, Block
from training.pretrain.models.experts import Experts


def layer_views(block: Block) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each weight inside a layer of transformers' Llama, Qwen3 or Qwen3-MoE, with a view of it."""
    assert isinstance(block.attention, Attention)
    yield from _attention_views(block.attention)
    yield from mlp_views(block.mlp)


def _attention_views(attention: Attention) -> Iterator[tuple[str, Tensor]]:
    config = attention.config
    heads = attention.query_key_value.view(config.kv_heads, config.group + 2, config.head_width, config.width)
    yield "input_layernorm.weight", attention.norm
    yield "self_attn.q_proj.weight", heads[:, : config.group]
    yield "self_attn.k_proj.weight", heads[:, config.group]
    yield "self_attn.v_proj.weight", heads[:, config.group + 1]
    yield "self_attn.o_proj.weight", attention.output
    if config.qk_norm:
        yield "self_attn.q_norm.weight", attention.query_norm
        yield "self_attn.k_norm.weight", attention.key_norm


def mlp_views(mlp: MLP | Experts) -> Iterator[tuple[str, Tensor]]:
    """Yield the names inside a layer of transformers of an MLP's or the experts' weights, and of the norm before."""
    yield "post_attention_layernorm.weight", mlp.norm
    if isinstance(mlp, Experts):
        yield "mlp.gate.weight", mlp.router
        for name in ("gate", "up", "down"):
            for number, weight in enumerate(getattr(mlp, name)):
                yield f"mlp.experts.{number}.{name}_proj.weight", weight
    else:
        for name in ("gate", "up", "down"):
            yield f"mlp.{name}_proj.weight", getattr(mlp, name)

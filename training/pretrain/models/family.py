"""The records that a model family declares. Imports no torch, because recipes are read without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from training.contract.parts.outside import NoSettings
from training.contract.records import write_record
from training.pretrain.models.shape import ExpertLayers, HeadWidths, ModelConfig, RotaryScaling

if TYPE_CHECKING:
    from torch import Tensor

    from training.pretrain.models.decoder import Block

Fields = dict[str, Any]
NamedShapes = Iterable[tuple[str, tuple[int, ...]]]


def layer_weights(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each weight in a layer of Llama, Qwen3 or Qwen3-MoE, with the decoder's names."""
    D, A, E = config.width, config.attention_width, config.head_width
    yield "attention.norm", (D,)
    yield "attention.query_key_value", (A + 2 * config.kv_heads * E, D)
    yield "attention.output", (D, A)
    if config.qk_norm:
        yield "attention.query_norm", (E,)
        yield "attention.key_norm", (E,)
    yield "mlp.norm", (D,)
    yield from ((f"mlp.{name}", shape) for name, shape in mlp_weights(config, layer))


def mlp_weights(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each weight in the MLP or the experts of a layer, without the norm before it."""
    D, experts = config.width, config.experts
    gates = ("gate", "up") if config.activation == "swiglu" else ("up",)
    if not config.has_experts(layer):
        yield from ((name, (config.mlp_width, D)) for name in gates)
        yield "down", (D, config.mlp_width)
        return
    yield "router", (experts.count, D)
    yield from ((name, (experts.count, experts.width, D)) for name in gates)
    yield "down", (experts.count, D, experts.width)
    if experts.shared:
        yield from ((f"shared_{name}", (experts.shared * experts.width, D)) for name in gates)
        yield "shared_down", (D, experts.shared * experts.width)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """The layers of a family that differ from those of Llama and Qwen3.

    `make` returns a layer by its number; only there is torch imported. `weights` yields name and shape of each weight
    in it, from which parameters, operations, memory and disk are computed. `kept` returns how many numbers for each
    token a layer keeps for the backward pass, beyond those of a layer of Llama or Qwen3. `names` yields each weight, or
    a view of it, with its name inside a layer of transformers' class; None: the names of Llama and Qwen3. `scaling`
    returns the scaling of a layer's rotary positions. `head_widths` returns the widths of attention's heads; None:
    those of Llama and Qwen3. `begin_as_identity` says whether the matrices that write into the residual stream may
    begin as zero.
    """

    make: Callable[[ModelConfig, int], Block]
    weights: Callable[[ModelConfig, int], NamedShapes] = layer_weights
    kept: Callable[[ModelConfig, int], int] = lambda config, layer: 0
    names: Callable[[Block], Iterable[tuple[str, Tensor]]] | None = None
    scaling: Callable[[ModelConfig, int], RotaryScaling] = lambda config, layer: config.rope_scaling
    head_widths: Callable[[ModelConfig], HeadWidths] | None = None
    begin_as_identity: bool = True


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
    such a shape. `fields` returns the fields of `config.json` that only this family has, or that mean something else in
    it; `read` turns them back into fields of a shape.

    A family with `layers` of its own has the shapes whose `model.family` names it, and no others; `has` is not asked.
    `settings` is the record class of its settings in `model.parts`, which `read` returns as `settings`.
    """

    class_name: str  # in transformers, without ForCausalLM
    has: Callable[[ModelConfig], bool] = lambda config: False
    why_not: Callable[[ModelConfig], list[str]] = lambda config: []
    fields: Callable[[ModelConfig], Fields] = lambda config: {}
    read: Callable[[Fields], Fields] = lambda data: {}
    presets: dict[str, Preset] = field(default_factory=dict, hash=False)
    layers: Layers | None = None
    settings: type = NoSettings


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
        "family": None,
        "parts": {},
    }
    return Preset(vocab_size=vocab_size, parameters=parameters, model={**plain, **fields})


def sizes(width: int, layers: int, heads: int, kv_heads: int, mlp_width: int) -> dict[str, int]:
    """Return width, layers, heads, key-value heads and MLP width, as published tables give them, by field name."""
    return {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "mlp_width": mlp_width}

"""The decoder: grouped-query attention, rotary positions, RMSNorm, an MLP or experts; `shape.py` has its options.

Shape letters: B rows, L positions in a row, D width, H query heads, K key-value heads, G = H / K query heads that share
one key-value head, E width of one head, F width of the MLP, V vocabulary. When a model is spread over processes
(`mesh.py`), L and K count this process's share within a layer.

Parameters are fp32 masters. `Decoder.forward` computes in the dtype of its argument and casts each weight once in each
pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.pretrain.models.attention import DocumentMask, Visibility, attend, attend_across
from training.pretrain.models.collectives import Lanes
from training.pretrain.models.experts import Experts, Routing
from training.pretrain.models.layers import (
    Product,
    feed_forward,
    lean_linear,
    linear,
    looked_up,
    recomputed,
    softcapped,
    unit_rms,
)
from training.pretrain.models.rotary import rotary_frequencies, rotary_table, rotate
from training.pretrain.models.shape import ModelConfig


class BaseAttention(nn.Module):
    """What every layer of attention has: the norm before it, and how heads are mixed within documents.

    A subclass has `forward(x_BLD, table, mask)`, which returns what the layer adds to the residual stream `[B, L, D]`;
    `table` has cosine and sine of each position's angles.
    """

    lanes = Lanes()

    def __init__(self, config: ModelConfig, *, windowed: bool) -> None:
        super().__init__()
        self.config = config
        self.windowed = windowed
        self.recompute = False
        self.product: Product = linear
        self.norm = nn.Parameter(torch.ones(config.width))

    def mixed(
        self, query_key: Tensor, value: Tensor, mask: DocumentMask, *, table: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Return the mixed values of all heads `[B, K, G, L, V]`, after a rotation by `table` if it is given.

        `query_key` is `[B, K, G + 1, L, E]`, the queries of each key and the key itself; `value` is `[B, K, 1, L, V]`.
        """
        seen = mask.visibility(windowed=self.windowed)
        return recomputed(_mixed, query_key, value, table, seen, self.lanes, when=self.recompute)


class Attention(BaseAttention):
    """Grouped-query attention within documents."""

    def __init__(self, config: ModelConfig, *, windowed: bool) -> None:
        super().__init__(config, windowed=windowed)
        rows = (config.heads + 2 * config.kv_heads) * config.head_width
        # One product for queries, keys and values. Rows are grouped by key-value head: G query heads, key, value.
        self.query_key_value = nn.Parameter(torch.empty(rows, config.width))
        self.output = nn.Parameter(torch.empty(config.width, config.attention_width))
        if config.qk_norm:
            self.query_norm = nn.Parameter(torch.ones(config.head_width))
            self.key_norm = nn.Parameter(torch.ones(config.head_width))

    def forward(self, x_BLD: Tensor, table: tuple[Tensor, Tensor], mask: DocumentMask) -> Tensor:
        fused = self.product(
            self.lanes.enter(unit_rms(x_BLD, self.config.norm_epsilon)), self.query_key_value, self.norm
        )
        return self.attended(fused, table, mask)

    def attended(self, fused: Tensor, table: tuple[Tensor, Tensor], mask: DocumentMask) -> Tensor:
        """Return the layer's output, given the product `[B, L, rows]` for queries, keys and values."""
        config = self.config
        B, L, _ = fused.shape
        heads = fused.view(B, L, -1, config.group + 2, config.head_width).permute(0, 2, 3, 1, 4)
        query_key, value = heads.split((config.group + 1, 1), dim=2)  # [B, K, G + 1 or 1, L, E]
        value = value.contiguous()  # a part of `fused` would keep all of it for the backward pass
        if fused.device.type == "cpu":  # elsewhere the rotation reads them as they lie
            query_key = query_key.contiguous()
        if config.qk_norm:
            query_key = self.normed(query_key)
        mixed = self.mixed(query_key, value, mask, table=table)
        return self.lanes.leave(self.product(mixed.permute(0, 3, 1, 2, 4).reshape(B, L, -1), self.output))

    def normed(self, query_key: Tensor) -> Tensor:
        """Return the queries and keys `[B, K, G + 1, L, E]` after QK-norm."""
        return unit_rms(query_key, self.config.norm_epsilon) * self._query_key_gains().to(query_key.dtype)

    def _query_key_gains(self) -> Tensor:
        """Return `[G + 1, 1, E]`: the norm gain of each query head of a group, then of its key."""
        return torch.stack((*[self.query_norm] * self.config.group, self.key_norm))[:, None]


def _mixed(
    query_key: Tensor, value: Tensor, table: tuple[Tensor, Tensor] | None, seen: Visibility, lanes: Lanes
) -> Tensor:
    """Apply rotary positions and attention to the heads.

    Recomputing this part is cheap, and keeping its result takes much memory.
    """
    rotated = query_key if table is None else rotate(query_key, *table)
    if lanes.context is None:
        return attend(rotated, value, seen)
    return attend_across(rotated, value, seen, lanes.context)


class MLP(nn.Module):
    """A feed-forward layer, gated or not."""

    lanes = Lanes()

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_epsilon
        self.recompute = False
        self.product: Product = linear
        self.norm = nn.Parameter(torch.ones(config.width))
        gated = config.activation == "swiglu"
        self.gate = nn.Parameter(torch.empty(config.mlp_width, config.width)) if gated else None
        self.up = nn.Parameter(torch.empty(config.mlp_width, config.width))
        self.down = nn.Parameter(torch.empty(config.width, config.mlp_width))

    def forward(self, x_BLD: Tensor) -> Tensor:
        unit = self.lanes.enter(unit_rms(x_BLD, self.eps))
        return self.lanes.leave(
            feed_forward(
                unit,
                gate=self.gate,
                up=self.up,
                down=self.down,
                gain=self.norm,
                recompute=self.recompute,
                product=self.product,
            )
        )


class Block(nn.Module):
    """A pre-norm layer of attention and MLP or experts; `layer` counts from 0."""

    attention_class: type[BaseAttention] = Attention
    mlp_class = MLP
    experts_class = Experts

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention = self.attention_class(config, windowed=config.is_windowed(layer))
        self.mlp = self.experts_class(config) if config.has_experts(layer) else self.mlp_class(config)

    def forward(self, x_BLD: Tensor, table: tuple[Tensor, Tensor], mask: DocumentMask) -> tuple[Tensor, Routing | None]:
        """Return the layer's output and the routing of its experts, or None if it has no experts."""
        x_BLD = x_BLD + self.attention(x_BLD, table, mask)
        if isinstance(self.mlp, MLP):
            return x_BLD + self.mlp(x_BLD), None
        mixed, routing = self.mlp(x_BLD)
        return x_BLD + mixed, routing


class Hidden(NamedTuple):
    """The result of a pass: normed hidden states `[B, L, D]`, and the routing of the expert layers.

    balance: fp32 scalar, the load-balancing loss summed over expert layers and rows.
    loads: fp32 `[expert layers, experts]`, tokens sent to each.
    """

    states: Tensor
    balance: Tensor
    loads: Tensor


class Decoder(nn.Module):
    """A decoder: computes hidden states from tokens; `head_weight` turns hidden states into logits."""

    pieces: Any = None  # this process's part of each weight, once the model is spread (mesh.py)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute_blocks = False
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.width))
        own = config.own_layers
        make = Block if own is None else own.make
        scalings = [config.rope_scaling if own is None else own.scaling(config, n) for n in range(config.layers)]
        # The different scalings of rotary positions, and for each layer the number of its own.
        self.scalings = tuple(dict.fromkeys(scalings))
        self.scaling_of = tuple(map(self.scalings.index, scalings))
        self.blocks = nn.ModuleList(make(config, layer) for layer in range(config.layers))
        self.norm = nn.Parameter(torch.ones(config.width))
        if not config.tied_embeddings:
            self.head = nn.Parameter(torch.empty(config.vocab_size, config.width))

    def set_recompute(self, kind: Literal["none", "selective", "full"]) -> None:
        """Choose what the backward pass recomputes.

        `none`: nothing; `selective`: attention and activation functions; `full`: whole layers. `selective` keeps the
        products of weight matrices (arXiv 2205.05198), so it costs little time.
        """
        self.recompute_blocks = kind == "full"
        for module in self.modules():
            if isinstance(module, BaseAttention | MLP | Experts):
                module.recompute = kind == "selective"

    def set_product(self, product: Product) -> None:
        """Set the function that multiplies by the weight matrices of attention and MLPs.

        Embedding, head and experts do not use it.
        """
        for module in self.modules():
            if isinstance(module, BaseAttention | MLP):
                module.product = product

    def keep_no_copies(self) -> None:
        """Keep no copies of the layers' weights from forward to backward pass; see `lean_linear`.

        Products that were set by `set_product` stay.
        """
        for module in self.modules():
            if isinstance(module, BaseAttention | MLP) and module.product is linear:
                module.product = lean_linear
            elif isinstance(module, Experts):
                module.is_lean = True

    @property
    def head_weight(self) -> Tensor:
        """The head's matrix `[V, D]`, which is the embedding itself if they are tied."""
        return self.embedding if self.config.tied_embeddings else self.head

    def forward(
        self,
        tokens_BL: Tensor,
        mask: DocumentMask,
        *,
        dtype: torch.dtype = torch.float32,
        given_BLD: Tensor | None = None,
        layers: range | None = None,
    ) -> Hidden:
        """Run one pass over packed rows and return hidden states in `dtype`.

        With `layers`, run only these layers, beginning with the states `given_BLD` of the layer before them. States are
        normed only after the last layer.
        """
        tables = self._rotary_tables(mask.positions, dtype)
        x_BLD = looked_up(tokens_BL, self.embedding).to(dtype) if given_BLD is None else given_BLD
        routings = []
        for layer in range(self.config.layers) if layers is None else layers:
            table = tables[self.scaling_of[layer]]
            x_BLD, routing = recomputed(self.blocks[layer], x_BLD, table, mask, when=self.recompute_blocks)
            routings += [routing] if routing else []
        if layers is None or layers.stop == self.config.layers:
            x_BLD = unit_rms(x_BLD, self.config.norm_epsilon) * self.norm.to(dtype)
        return Hidden(x_BLD, *self._summed(routings, tokens_BL.device))

    def _rotary_tables(self, positions: Tensor, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Return cosine and sine of the angles at each position, each `[B, 1, 1, L, E/2]`, for every scaling."""
        tables = []
        for scaling in self.scalings:
            frequencies, factor = rotary_frequencies(
                head_width=self.config.head_width,
                theta=self.config.rope_theta,
                scaling=scaling,
                device=positions.device,
            )
            cosine, sine = (part.to(dtype)[:, None, None] for part in rotary_table(positions, frequencies, factor))
            tables.append((cosine, sine))
        return tables

    def _summed(self, routings: list[Routing], device: torch.device) -> tuple[Tensor, Tensor]:
        if not routings:
            return torch.zeros((), device=device), torch.zeros(0, 0, device=device)
        return (
            torch.stack([routing.balance for routing in routings]).sum(),
            torch.stack([routing.loads for routing in routings]),
        )

    def logits(self, tokens_BL: Tensor, mask: DocumentMask, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return logits `[B, L, V]`, for generation and checks.

        Training never holds all logits at once: see `losses`.
        """
        states = self(tokens_BL, mask, dtype=dtype).states
        return softcapped(F.linear(states, self.head_weight.to(dtype)), self.config.logit_softcap)

    @torch.no_grad()
    def rebalance(self, loads: Tensor) -> None:
        """Move each router's bias against its `loads` in the whole global batch, `[expert layers, experts]`."""
        layers = [layer for layer in range(self.config.layers) if self.config.has_experts(layer)]
        for layer, load in zip(layers, loads, strict=True):
            block = self.blocks[layer]
            if isinstance(block, Block) and isinstance(block.mlp, Experts):  # other processes have the other layers
                block.mlp.rebalance(load)


def meta_decoder(config: ModelConfig) -> Decoder:
    """Return a decoder on torch's meta device, which has the names and shapes of its weights but no memory for them."""
    with torch.device("meta"):
        return Decoder(config)


EMBEDDING_DEVIATION = 0.02


@torch.no_grad()
def initialise(model: Decoder, *, zero_outputs: bool, generator: torch.Generator) -> None:
    """Set every weight of a decoder to its random initial value, `drawn` from `generator`."""
    for name, weight in drawn(model, zero_outputs=zero_outputs, generator=generator):
        model.get_parameter(name).copy_(weight)


def drawn(model: Decoder, *, zero_outputs: bool, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Yield the random initial value of each weight with its name, one weight at a time, on the CPU.

    The order is that of `named_parameters`, so that a seed of `generator` determines the model. `model` may be on the
    meta device, because only its shapes are read.

    Embedding and head are normal with standard deviation 0.02, the matrices of the layers with 1 / sqrt(inputs), which
    preserves the scale of activations at any width. Matrices that write into the residual stream are divided by sqrt(2
    · layers) (GPT-2), or are zero with `zero_outputs`, so that each block starts as the identity. Norm gains are 1,
    biases 0.
    """
    for name, parameter in model.named_parameters():
        weight = torch.empty(parameter.shape, dtype=parameter.dtype)
        if weight.dim() == 1:
            weight.fill_(0.0 if name.endswith("_bias") else 1.0)
        elif name in ("embedding", "head"):
            weight.normal_(0.0, EMBEDDING_DEVIATION, generator=generator)
        elif not name.endswith(("attention.output", "mlp.down", "mlp.shared_down")):
            weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=generator)
        elif zero_outputs:
            weight.zero_()
        else:
            weight.normal_(0.0, (2 * model.config.layers * weight.shape[-1]) ** -0.5, generator=generator)
        yield name, weight

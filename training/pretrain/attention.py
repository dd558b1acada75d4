"""Attention within packed documents, in the form that is fastest on each kind of device.

On a CPU: query blocks as batched matrix products with a hand-written backward pass. In bf16 at 256 positions
this took 0.4 of the time of torch's `scaled_dot_product_attention` forward and backward (see docs/pretraining.md).
Elsewhere: `scaled_dot_product_attention` with the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from training.pretrain.lanes import joined

# Below 64 rows a product no longer fills the CPU's bf16 tiles; above, work above the diagonal is wasted.
MIN_BLOCK = 64
MAX_BLOCKS = 16


class QueryBlock(NamedTuple):
    """Queries `start` to `stop` of a row and the keys `first` to `last` that any of them may see."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Visibility:
    """What each position of packed rows may look at.

    bias: for each block, what is added to its scores (0 or a large negative number): a CPU pass only.
    visible: `[B, 1, L, L]` booleans: elsewhere only, and wherever other processes have some of the row's queries. Then
    only the own queries' rows are here.
    """

    blocks: tuple[QueryBlock, ...] = ()
    bias: tuple[Tensor, ...] = ()
    visible: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentMask:
    """Which positions of packed rows belong together.

    documents: `[B, L]` integers; equal and adjacent means the same document.
    positions: `[B, L]`, restarting at 0 where a document starts; only the own ones where others have some.
    full, windowed: what a layer sees without and with a window; `windowed` is None when no layer has one.
    """

    documents: Tensor
    positions: Tensor
    full: Visibility
    windowed: Visibility | None = None

    def visibility(self, *, windowed: bool) -> Visibility:
        """What a layer of that kind sees."""
        return self.windowed if windowed and self.windowed is not None else self.full


def document_mask(
    documents: Tensor,
    *,
    dtype: torch.dtype,
    window: int = 0,
    prefix: Tensor | None = None,
    own: slice | None = None,
) -> DocumentMask:
    """The mask of rows whose `documents` `[B, L]` say which document each position belongs to.

    A position sees its document up to itself, with a `window` only the last that many positions; and everything in its
    document that `prefix` `[B, L]` marks (all marked: attention in both directions). `own` are the positions of which
    this process has the queries; None: all.
    """
    B, L = documents.shape
    index = torch.arange(L, device=documents.device)
    starts = torch.zeros(B, L, dtype=torch.long, device=documents.device)
    starts[:, 1:] = (documents[:, 1:] != documents[:, :-1]) * index[1:]
    first = starts.cummax(dim=1).values
    # Position i sees j when j is not after i and not before the start of i's document.
    visible = (index[None, None, :] <= index[None, :, None]) & (index[None, None, :] >= first[:, :, None])
    near = visible & (index[None, None, :] > index[None, :, None] - window) if window else None
    if prefix is not None:
        marked = prefix[:, None, :] & (first[:, None, :] == first[:, :, None])
        visible, near = visible | marked, None if near is None else near | marked
    is_causal, positions = prefix is None, index - first
    if own is not None:
        return DocumentMask(
            documents=documents,
            positions=positions[:, own],
            full=Visibility(visible=visible[:, None, own]),
            windowed=None if near is None else Visibility(visible=near[:, None, own]),
        )
    return DocumentMask(
        documents=documents,
        positions=positions,
        full=_visibility(visible, dtype=dtype, window=0, is_causal=is_causal),
        windowed=None if near is None else _visibility(near, dtype=dtype, window=window, is_causal=is_causal),
    )


def _visibility(visible: Tensor, *, dtype: torch.dtype, window: int, is_causal: bool) -> Visibility:
    """The form of `visible` `[B, L, L]` that is used where it lies."""
    if visible.device.type != "cpu":
        return Visibility(visible=visible[:, None])
    # -1e4 is exact enough in bf16, and its exponential is 0 beside any score that training meets.
    full = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -1e4)
    blocks = query_blocks(visible.shape[1], window=window if is_causal else 0, is_causal=is_causal)
    bias = tuple(full[:, None, block.start : block.stop, block.first : block.last] for block in blocks)
    return Visibility(blocks=blocks, bias=bias)


def one_document(tokens_BL: Tensor, *, dtype: torch.dtype, window: int = 0) -> DocumentMask:
    """The mask of rows that are one document each: plain causal attention."""
    return document_mask(torch.zeros_like(tokens_BL), dtype=dtype, window=window)


def attend(query_key: Tensor, value: Tensor, seen: Visibility) -> Tensor:
    """Mixed values `[B, K, G, L, E]`.

    `query_key` `[B, K, G + 1, L, E]` holds the G query heads of each key-value head and then its key; `value` is `[B,
    K, 1, L, E]`.
    """
    if seen.visible is None:
        return BlockAttention.apply(query_key, value, seen.blocks, seen.bias)
    return grouped_attention(query_key[:, :, :-1], query_key[:, :, -1:], value, seen.visible)


def attend_across(query_key: Tensor, value: Tensor, seen: Visibility, context: ProcessGroup) -> Tensor:
    """`attend` of this process's queries to the keys of all of `context`, which has the rest of the row.

    Keys and values are joined in one message: with grouped queries they are the small part.
    """
    whole = joined(torch.cat((query_key[:, :, -1:], value), dim=2), 3, context)
    return grouped_attention(query_key[:, :, :-1], whole[:, :, :1], whole[:, :, 1:], seen.visible)


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """Mixed values `[B, K, G, L, E]` by torch's own kernel. `visible` is `[B, 1, L, keys]`."""
    B, K, G, L, E = query.shape
    mixed = F.scaled_dot_product_attention(
        query.reshape(B, K * G, L, E), key[:, :, 0], value[:, :, 0], attn_mask=visible, enable_gqa=G > 1
    )
    return mixed.view(B, K, G, L, E)


def query_blocks(length: int, *, window: int = 0, is_causal: bool = True) -> tuple[QueryBlock, ...]:
    """The query blocks of a row, each with no more keys than it needs."""
    size = max(MIN_BLOCK, -(-length // MAX_BLOCKS))
    return tuple(
        QueryBlock(
            start=start,
            stop=(stop := min(start + size, length)),
            first=max(0, start - window + 1) if window else 0,
            last=stop if is_causal else length,
        )
        for start in range(0, length, size)
    )


class BlockAttention(torch.autograd.Function):
    """softmax(query · keyᵀ / sqrt(E) + bias) · value, a block of queries at a time against the keys it may see.

    Keeps the probabilities for the backward pass: B · H · L² / 2 numbers a layer when causal, which suits rows of up to
    a few thousand.
    """

    @staticmethod
    def forward(ctx, query_key, value, blocks, bias):  # type: ignore[no-untyped-def]
        B, K, heads, L, E = query_key.shape
        query_key, value = query_key.reshape(B * K, heads, L, E), value.reshape(B * K, L, E)
        query, key = query_key[:, :-1], query_key[:, -1]
        mixed = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        kept = []
        for (start, stop, first, last), block_bias in zip(blocks, bias, strict=True):
            rows = query[:, :, start:stop].mul(E**-0.5).view(B * K, -1, E)
            scores = torch.bmm(rows, key[:, first:last].transpose(1, 2))
            scores.view(B, -1, stop - start, last - first).add_(block_bias)
            weights = torch.softmax(scores, dim=-1)
            mixed[:, :, start:stop] = torch.bmm(weights, value[:, first:last]).view(B * K, -1, stop - start, E)
            kept += [rows, weights]
        ctx.blocks = blocks
        ctx.save_for_backward(key, value, *kept)
        return mixed.view(B, K, heads - 1, L, E)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        key, value, *kept = ctx.saved_tensors
        B, K, G, L, E = grad.shape
        grad = grad.reshape(B * K, G, L, E)
        grad_query_key = torch.empty(B * K, G + 1, L, E, dtype=grad.dtype, device=grad.device)
        grad_query, grad_key = grad_query_key[:, :-1], torch.zeros_like(key)
        grad_value = torch.zeros_like(value)
        for (start, stop, first, last), rows, weights in zip(ctx.blocks, kept[::2], kept[1::2], strict=True):
            grad_rows = grad[:, :, start:stop].reshape(B * K, -1, E)
            grad_value[:, first:last].baddbmm_(weights.transpose(1, 2), grad_rows)
            grad_weights = torch.bmm(grad_rows, value[:, first:last].transpose(1, 2))
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            torch.mul(
                torch.bmm(grad_scores, key[:, first:last]).view(B * K, G, -1, E),
                E**-0.5,
                out=grad_query[:, :, start:stop],
            )
            grad_key[:, first:last].baddbmm_(grad_scores.transpose(1, 2), rows)
        grad_query_key[:, -1] = grad_key
        return grad_query_key.view(B, K, G + 1, L, E), grad_value.view(B, K, 1, L, E), None, None

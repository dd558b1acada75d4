"""Causal attention within packed documents, in the form that is fastest on each kind of device.

On a CPU: causal query blocks as batched matrix products with a hand-written backward pass. In bf16 at 256 positions
this took 0.4 of the time of torch's `scaled_dot_product_attention` forward and backward (see docs/pretraining.md).
Elsewhere: `scaled_dot_product_attention` with the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Below 64 rows a product no longer fills the CPU's bf16 tiles; above, work above the diagonal is wasted.
MIN_BLOCK = 64
MAX_BLOCKS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentMask:
    """Which positions of packed rows belong together.

    documents: `[B, L]` integers; equal and adjacent means the same document.
    positions: `[B, L]`, restarting at 0 where a document starts.
    bias: for each causal query block, what is added to its scores (0 or a large negative number): a CPU pass only.
    visible: `[B, 1, L, L]` booleans: elsewhere only.
    """

    documents: Tensor
    positions: Tensor
    bias: tuple[Tensor, ...] = ()
    visible: Tensor | None = None


def document_mask(documents: Tensor, *, dtype: torch.dtype) -> DocumentMask:
    """The mask of rows whose `documents` `[B, L]` say which document each position belongs to."""
    B, L = documents.shape
    index = torch.arange(L, device=documents.device)
    starts = torch.zeros(B, L, dtype=torch.long, device=documents.device)
    starts[:, 1:] = (documents[:, 1:] != documents[:, :-1]) * index[1:]
    first = starts.cummax(dim=1).values
    positions = index - first
    # Position i sees j when j is not after i and not before the start of i's document.
    visible = (index[None, None, :] <= index[None, :, None]) & (index[None, None, :] >= first[:, :, None])
    if documents.device.type != "cpu":
        return DocumentMask(documents=documents, positions=positions, visible=visible[:, None])
    # -1e4 is exact enough in bf16, and its exponential is 0 beside any score that training meets.
    full = torch.zeros(B, L, L, dtype=dtype).masked_fill_(~visible, -1e4)
    bias = tuple(full[:, None, start:stop, :stop] for start, stop in _blocks(L))
    return DocumentMask(documents=documents, positions=positions, bias=bias)


def one_document(tokens_BL: Tensor, *, dtype: torch.dtype) -> DocumentMask:
    """The mask of rows that are one document each: plain causal attention."""
    return document_mask(torch.zeros_like(tokens_BL), dtype=dtype)


def attend(query_key: Tensor, value: Tensor, mask: DocumentMask) -> Tensor:
    """Mixed values `[B, K, G, L, E]`.

    `query_key` `[B, K, G + 1, L, E]` holds the G query heads of each key-value head and then its key; `value` is `[B,
    K, 1, L, E]`.
    """
    if mask.visible is None:
        return BlockCausalAttention.apply(query_key, value, mask.bias)
    query, key = query_key.split((query_key.shape[2] - 1, 1), dim=2)
    return grouped_attention(query, key, value, mask.visible)


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """Mixed values `[B, K, G, L, E]` by torch's own kernel. `visible` is `[B, 1, L, keys]`."""
    B, K, G, L, E = query.shape
    mixed = F.scaled_dot_product_attention(
        query.reshape(B, K * G, L, E), key[:, :, 0], value[:, :, 0], attn_mask=visible, enable_gqa=G > 1
    )
    return mixed.view(B, K, G, L, E)


def _blocks(length: int) -> list[tuple[int, int]]:
    """Start and stop of each query block of a row."""
    size = max(MIN_BLOCK, -(-length // MAX_BLOCKS))
    return [(start, min(start + size, length)) for start in range(0, length, size)]


class BlockCausalAttention(torch.autograd.Function):
    """softmax(query · keyᵀ / sqrt(E) + bias) · value, a block of queries at a time against the keys up to its end.

    Keeps the probabilities for the backward pass: B · H · L² / 2 numbers a layer, which suits rows of up to a few
    thousand.
    """

    @staticmethod
    def forward(ctx, query_key, value, bias):  # type: ignore[no-untyped-def]
        B, K, heads, L, E = query_key.shape
        query_key, value = query_key.reshape(B * K, heads, L, E), value.reshape(B * K, L, E)
        query, key = query_key[:, :-1], query_key[:, -1]
        mixed = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        kept = []
        for (start, stop), block_bias in zip(_blocks(L), bias, strict=True):
            rows = query[:, :, start:stop].mul(E**-0.5).view(B * K, -1, E)
            scores = torch.bmm(rows, key[:, :stop].transpose(1, 2))
            scores.view(B, -1, stop - start, stop).add_(block_bias)
            weights = torch.softmax(scores, dim=-1)
            mixed[:, :, start:stop] = torch.bmm(weights, value[:, :stop]).view(B * K, -1, stop - start, E)
            kept += [rows, weights]
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
        for (start, stop), rows, weights in zip(_blocks(L), kept[::2], kept[1::2], strict=True):
            grad_rows = grad[:, :, start:stop].reshape(B * K, -1, E)
            grad_value[:, :stop].baddbmm_(weights.transpose(1, 2), grad_rows)
            grad_weights = torch.bmm(grad_rows, value[:, :stop].transpose(1, 2))
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            torch.mul(
                torch.bmm(grad_scores, key[:, :stop]).view(B * K, G, -1, E), E**-0.5, out=grad_query[:, :, start:stop]
            )
            grad_key[:, :stop].baddbmm_(grad_scores.transpose(1, 2), rows)
        grad_query_key[:, -1] = grad_key
        return grad_query_key.view(B, K, G + 1, L, E), grad_value.view(B, K, 1, L, E), None

"""Attention within packed documents, in the form that is fastest on each kind of device.

On a CPU: query blocks as batched matrix products with a hand-written backward pass. In bf16 at 256 positions this took
0.4 of the time of torch's `scaled_dot_product_attention` forward and backward (see docs/pretraining.md). On a CUDA
device: torch's `flex_attention`, compiled, which skips key blocks that no query of a block sees and stores no mask
(arXiv 2412.05496). Elsewhere: `scaled_dot_product_attention` with the mask.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from training.contract.records import RecipeError
from training.pretrain.models.collectives import joined_ends

if TYPE_CHECKING:
    import numpy as np
    from torch.nn.attention.flex_attention import BlockMask

# `blocks`: the CPU's query blocks; `flex`: torch's `flex_attention`; `masked` and `causal`: torch's
# `scaled_dot_product_attention`, with a mask for every pair of positions, or without a mask if rows are one document.
# `varlen`: torch's `varlen_attn`, which takes the documents' starts.
Kind = Literal["blocks", "flex", "masked", "causal", "varlen"]

# Below 64 rows a product no longer fills the CPU's bf16 tiles; above, work above the diagonal is wasted.
MIN_BLOCK = 64
MAX_BLOCKS = 16
FLEX_BLOCK = 128  # positions on each side of a block: the size that flex_attention's kernels are made for
FLEX_HEAD = 16  # the smallest head width that flex_attention supports


class QueryBlock(NamedTuple):
    """Queries `start` to `stop` of a row and the keys `first` to `last` that any of them may see."""

    start: int
    stop: int
    first: int
    last: int


class Starts(NamedTuple):
    """The documents of packed rows, put end to end, for `varlen_attn`.

    at: int32, the start of each document and then the number of all positions, as often as the length asks. A length
    that changes with every batch would compile every batch anew.
    """

    at: Tensor
    row_length: int
    window: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Visibility:
    """The keys that each position of packed rows may attend to.

    bias: for each block, the numbers added to its scores (0 or a large negative number); used on a CPU only.
    flex: the blocks that flex_attention computes, and its rule within them.
    visible: `[B, 1, L, L]` booleans.
    starts: of the documents; every position sees those of its document up to itself.

    If other processes have some of the row's queries, `flex` and `visible` have rows for this process's queries only.
    If all fields are empty, every position sees itself and all positions before it.
    """

    blocks: tuple[QueryBlock, ...] = ()
    bias: tuple[Tensor, ...] = ()
    flex: BlockMask | None = None
    visible: Tensor | None = None
    starts: Starts | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentMask:
    """Which positions of packed rows belong to the same document, and which of them each layer sees.

    documents: `[B, L]` integers; equal and adjacent means the same document.
    positions: `[B, L]`, restarting at 0 where a document starts; only this process's positions if others have some.
    full, windowed: what a layer sees without and with a window; `windowed` is None when no layer has one.
    """

    documents: Tensor
    positions: Tensor
    full: Visibility
    windowed: Visibility | None = None

    def visibility(self, *, windowed: bool) -> Visibility:
        """Return the keys that each position may attend to, in a layer with a sliding window or in one without."""
        return self.windowed if windowed and self.windowed is not None else self.full


def attention_kind(device: torch.device, *, head_width: int, is_cut: bool = False) -> Kind:
    """Return the name of the fastest attention implementation on a device.

    `is_cut` says whether other processes have some of a row's queries.
    """
    if device.type == "cpu":
        return "masked" if is_cut else "blocks"
    has_flex = device.type == "cuda" and head_width >= FLEX_HEAD and importlib.util.find_spec("triton") is not None
    return "flex" if has_flex else "masked"


def document_mask(
    documents: Tensor,
    *,
    dtype: torch.dtype,
    window: int = 0,
    prefix: Tensor | None = None,
    own: Tensor | None = None,
    kind: Kind | None = None,
    most: int = 0,
) -> DocumentMask:
    """Return the mask of rows, given the document `documents` `[B, L]` of each position.

    A position sees the positions of its document up to itself, or with a `window` only the last `window` of them, and
    everything in its document that `prefix` `[B, L]` marks (all marked: attention in both directions). `own` are the
    positions, ascending, whose queries this process has; None means all. `kind` None means `blocks` on a CPU that has
    all queries, otherwise `masked`. For `varlen` the rows have at most `most` documents.
    """
    B, L = documents.shape
    index = torch.arange(L, device=documents.device)
    starts = torch.zeros(B, L, dtype=torch.long, device=documents.device)
    starts[:, 1:] = (documents[:, 1:] != documents[:, :-1]) * index[1:]
    first = starts.cummax(dim=1).values
    kind = kind or ("blocks" if documents.device.type == "cpu" and own is None else "masked")
    places = index if own is None else own

    def seen_by(window: int) -> Visibility:
        if kind == "varlen":
            return Visibility(starts=Starts(_starts(first, most), L, window))
        if kind == "flex":
            return Visibility(flex=flex_mask(first, prefix, window=window, own=own))
        visible = _seen_in_square(first, prefix, window=window)
        if kind == "masked":
            return Visibility(visible=visible[:, places][:, None])
        return _in_blocks(visible, dtype=dtype, window=window, is_causal=prefix is None)

    return DocumentMask(
        documents=documents,
        positions=(index - first)[:, places],
        full=seen_by(0),
        windowed=seen_by(window) if window else None,
    )


def _starts(first: Tensor, most: int) -> Tensor:
    """Return the `at` of `Starts` for at most `most` documents, without waiting for the device.

    `first` `[B, L]` is the first position of each position's document.
    """
    index = torch.arange(first.shape[1], device=first.device)
    place = torch.arange(first.numel(), device=first.device).view_as(first)
    sorted_starts = torch.where(first == index, place, first.numel()).flatten().sort().values
    return F.pad(sorted_starts[:most], (0, most + 1 - min(most, first.numel())), value=first.numel()).int()


def documents_within(documents: np.ndarray) -> int:
    """Return a power of two that is at least the number of documents in packed rows `[B, L]`."""
    count = len(documents) + int((documents[:, 1:] != documents[:, :-1]).sum())
    return 1 << (count - 1).bit_length()


def check_varlen(
    *, name: str, device: torch.device, dtype: torch.dtype, is_plain: bool, is_cut: bool, is_grouped: bool
) -> None:
    """Raise RecipeError if `varlen_attn` cannot compute a training's attention here.

    `is_plain` says whether attention is causal and heads are ordinary, `is_cut` whether rows are divided, `is_grouped`
    whether several queries have one key.
    """
    if not is_plain or is_cut:
        why = "context divides rows" if is_cut else "it is for causal objectives and families with ordinary heads"
        raise RecipeError(f"attention={name}: {why}; auto is right")
    if device.type != "cuda" or dtype != torch.bfloat16:
        raise RecipeError(f"attention={name}: in bf16 on CUDA devices, here is {dtype} on {device.type}; auto is right")
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        raise RecipeError(f"attention={name}: torch {torch.__version__} has no varlen_attn; auto is right")
    from torch.nn.attention.varlen import varlen_attn

    if is_grouped and "enable_gqa" not in signature(varlen_attn).parameters:
        raise RecipeError(f"attention={name}: in torch {torch.__version__} not for grouped queries; auto is right")


def activate_flash_3() -> None:
    """Have `varlen_attn` use FlashAttention 3, which has never run here. Raise RecipeError if it is not installed."""
    from torch.nn.attention import activate_flash_attention_impl

    try:
        activate_flash_attention_impl("FA3")
    except (ImportError, ModuleNotFoundError, RuntimeError, ValueError) as error:
        raise RecipeError(
            f"attention=flash_3: FlashAttention 3 is not installed ({error}); varlen or auto is right"
        ) from None


def _seen_in_square(first: Tensor, prefix: Tensor | None, *, window: int) -> Tensor:
    """Return which positions each position may see, as booleans `[B, L, L]`.

    `first` `[B, L]` is the first position of each position's document.
    """
    index = torch.arange(first.shape[1], device=first.device)
    # Position i sees j when j is not after i and not before the start of i's document.
    visible = (index[None, None, :] <= index[None, :, None]) & (index[None, None, :] >= first[:, :, None])
    if window:
        visible = visible & (index[None, None, :] > index[None, :, None] - window)
    if prefix is not None:
        visible = visible | (prefix[:, None, :] & (first[:, None, :] == first[:, :, None]))
    return visible


def _in_blocks(visible: Tensor, *, dtype: torch.dtype, window: int, is_causal: bool) -> Visibility:
    """Convert the visible positions `visible` `[B, L, L]` into the blocks and biases that BlockAttention takes."""
    # -1e4 is exact enough in bf16, and its exponential is 0 beside any score that training meets.
    full = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -1e4)
    blocks = query_blocks(visible.shape[1], window=window if is_causal else 0, is_causal=is_causal)
    bias = tuple(full[:, None, block.start : block.stop, block.first : block.last] for block in blocks)
    return Visibility(blocks=blocks, bias=bias)


def flex_mask(first: Tensor, prefix: Tensor | None, *, window: int, own: Tensor | None = None) -> BlockMask:
    """Return flex_attention's block mask for the queries `own` of rows whose documents start at `first` `[B, L]`.

    A query sees a range that ends at its own position, and the range of a later query never starts earlier. So the
    first and last positions of a block determine the block's content, and the L × L matrix is never built. With
    `prefix`, a block may be computed in which no query sees a key: the rule decides for each pair.
    """
    from torch.nn.attention.flex_attention import BlockMask

    L, size = first.shape[1], FLEX_BLOCK

    def ends(count: int) -> tuple[Tensor, Tensor]:
        begin = torch.arange(0, count, size, device=first.device)
        return begin, (begin + size).clamp(max=count) - 1

    queries = L if own is None else len(own)
    (row, row_last), (key, key_last) = ends(queries), ends(L)
    query, query_last = (row, row_last) if own is None else (own[row], own[row_last])

    def earliest(position: Tensor) -> Tensor:
        return first[:, position].clamp(min=position - window + 1) if window else first[:, position]

    some = (key <= query_last[:, None]) & (key_last >= earliest(query)[:, :, None])  # [B, query blocks, key blocks]
    every = (key_last <= query[:, None]) & (key >= earliest(query_last)[:, :, None])
    if prefix is not None:
        marks = F.pad(prefix, (0, -L % size)).unflatten(1, (-1, size))
        query_from, query_to = first[:, query, None], first[:, query_last, None]
        key_from, key_to = first[:, None, key], first[:, None, key_last]
        some = some | (marks.any(-1)[:, None] & (key_to >= query_from) & (key_from <= query_to))
        every = every | (marks.all(-1)[:, None] & (key_from == query_to) & (key_to == query_from))
    every = every & (row_last - row + 1 == size)[:, None] & (key_last - key + 1 == size)
    return BlockMask.from_kv_blocks(
        *_counted(some & ~every),
        *_counted(every),
        BLOCK_SIZE=size,
        mask_mod=_rule(first, prefix, window=window, own=own),
        seq_lengths=(queries, L),
    )


def _counted(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many key blocks are chosen for each query block, and all key blocks, the chosen ones first.

    The key blocks are given by their indices. Both tensors have an axis of size 1 for the heads.
    """
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[:, None], order.int()[:, None].contiguous()


def _rule(first: Tensor, prefix: Tensor | None, *, window: int, own: Tensor | None) -> Callable[..., Tensor]:
    """Return the function by which flex_attention decides whether a query sees a key.

    `own` are the positions of this process's queries; None means all of the row.
    """

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query = query if own is None else own[query]
        seen = (key <= query) & (key >= first[row, query])
        if window:
            seen = seen & (key > query - window)
        if prefix is not None:
            seen = seen | (prefix[row, key] & (first[row, key] == first[row, query]))
        return seen

    return sees


def one_document(tokens_BL: Tensor, *, dtype: torch.dtype, window: int = 0, kind: Kind | None = None) -> DocumentMask:
    """Return the attention mask for rows that each hold a single document: plain causal attention.

    `kind` None means `blocks` on a CPU, otherwise `causal`, or `masked` with windows. `flex` is not used, because it
    would be compiled again for each length while a text is generated.
    """
    kind = kind or ("blocks" if tokens_BL.device.type == "cpu" else "masked" if window else "causal")
    if kind == "causal":
        positions = torch.arange(tokens_BL.shape[1], device=tokens_BL.device).expand_as(tokens_BL)
        return DocumentMask(documents=torch.zeros_like(tokens_BL), positions=positions, full=Visibility())
    return document_mask(torch.zeros_like(tokens_BL), dtype=dtype, window=window, kind=kind)


def attend(query_key: Tensor, value: Tensor, seen: Visibility) -> Tensor:
    """Return the attention output `[B, K, G, L, V]`.

    `query_key` `[B, K, G + 1, L, E]` holds the G query heads of each key-value head and then its key; `value` is `[B,
    K, 1, L, V]`, where V may differ from E. The result is as wide as the values.
    """
    if seen.blocks:
        return BlockAttention.apply(query_key, value, seen.blocks, seen.bias)
    query, key = query_key.split((query_key.shape[2] - 1, 1), dim=2)  # whose gradients are joined in one pass
    return _attended(query, key, value, seen)


def attend_across(query_key: Tensor, value: Tensor, seen: Visibility, context: ProcessGroup) -> Tensor:
    """Return the output of `attend` for this process's queries and the keys of all processes in `context`.

    Keys and values are gathered in one message: with grouped queries they are smaller than the queries.
    """
    key = query_key[:, :, -1:]
    whole = joined_ends(torch.cat((key, value), dim=-1), 3, context)
    keys, values = whole.split((key.shape[-1], value.shape[-1]), dim=-1)
    return _attended(query_key[:, :, :-1], keys, values, seen)


def _attended(query: Tensor, key: Tensor, value: Tensor, seen: Visibility) -> Tensor:
    if seen.flex is not None:
        return flex_grouped_attention(query, key, value, seen.flex)
    if seen.starts is not None:
        return varlen_grouped_attention(query, key, value, seen.starts)
    return grouped_attention(query, key, value, seen.visible)


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
    """Return the attention output `[B, K, G, L, V]` by torch's own kernel.

    `visible` is `[B, 1, L, keys]`; None means that a position sees itself and all positions before it.
    """
    B, K, G, L, E = query.shape
    mixed = F.scaled_dot_product_attention(
        query.reshape(B, K * G, L, E),
        key[:, :, 0],
        value[:, :, 0],
        attn_mask=visible,
        is_causal=visible is None,
        enable_gqa=G > 1,
    )
    return mixed.view(B, K, G, L, -1)


def flex_grouped_attention(query: Tensor, key: Tensor, value: Tensor, blocks: BlockMask) -> Tensor:
    """Return the attention output `[B, K, G, L, V]` by flex_attention, which computes only `blocks`."""
    B, K, G, L, E = query.shape
    from torch.nn.attention.flex_attention import flex_attention

    # Inside a compiled model it is compiled with the model; on a CPU compiling it gains nothing.
    is_plain = torch.compiler.is_compiling() or query.device.type == "cpu"
    mixed = (flex_attention if is_plain else _compiled_flex())(
        query.reshape(B, K * G, L, E), key[:, :, 0], value[:, :, 0], block_mask=blocks, enable_gqa=G > 1
    )
    return mixed.reshape(B, K, G, L, -1)


def varlen_grouped_attention(query: Tensor, key: Tensor, value: Tensor, starts: Starts) -> Tensor:
    """Return the attention output `[B, K, G, L, V]` by torch's `varlen_attn`, within the documents of `starts`."""
    from torch.nn.attention.varlen import varlen_attn

    B, K, G, L, _ = query.shape

    def end_to_end(part: Tensor) -> Tensor:
        return part.permute(0, 3, 1, 2, 4).reshape(B * L, -1, part.shape[-1])

    grouped: dict[str, Any] = {"enable_gqa": True} if G > 1 else {}  # an argument that torch 2.11 does not have
    mixed = varlen_attn(
        end_to_end(query),
        end_to_end(key),
        end_to_end(value),
        starts.at,
        starts.at,
        starts.row_length,
        starts.row_length,
        window_size=(starts.window - 1 if starts.window else -1, 0),
        **grouped,
    )
    assert isinstance(mixed, Tensor), "nothing else was asked for"
    return mixed.view(B, L, K, G, -1).permute(0, 2, 3, 1, 4)


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def query_blocks(length: int, *, window: int = 0, is_causal: bool = True) -> tuple[QueryBlock, ...]:
    """Divide the queries of a row into blocks, each with only the keys that its queries may see."""
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
    """Compute softmax(query · keyᵀ / sqrt(E) + bias) · value by blocks of queries.

    Each block is multiplied with the keys that it may see. The probabilities are kept for the backward pass: B · H · L²
    / 2 numbers in each layer if causal, which suits rows of up to a few thousand positions.
    """

    @staticmethod
    def forward(ctx, query_key, value, blocks, bias):
        B, K, heads, L, E = query_key.shape
        V = value.shape[-1]
        query_key, value = query_key.reshape(B * K, heads, L, E), value.reshape(B * K, L, V)
        query, key = query_key[:, :-1], query_key[:, -1]
        mixed = torch.empty(*query.shape[:-1], V, dtype=query.dtype, device=query.device)
        kept = []
        for (start, stop, first, last), block_bias in zip(blocks, bias, strict=True):
            rows = query[:, :, start:stop].mul(E**-0.5).view(B * K, -1, E)
            scores = torch.bmm(rows, key[:, first:last].contiguous().transpose(1, 2))
            scores.view(B, -1, stop - start, last - first).add_(block_bias)
            weights = torch.softmax(scores, dim=-1)
            mixed[:, :, start:stop] = torch.bmm(weights, value[:, first:last]).view(B * K, -1, stop - start, V)
            kept += [rows, weights]
        ctx.blocks = blocks
        ctx.save_for_backward(key, value, *kept)
        return mixed.view(B, K, heads - 1, L, V)

    @staticmethod
    def backward(ctx, grad):
        key, value, *kept = ctx.saved_tensors
        B, K, G, L, V = grad.shape
        E = key.shape[-1]
        grad = grad.reshape(B * K, G, L, V)
        grad_query_key = torch.empty(B * K, G + 1, L, E, dtype=grad.dtype, device=grad.device)
        grad_query, grad_key = grad_query_key[:, :-1], torch.zeros_like(key)
        grad_value = torch.zeros_like(value)
        for (start, stop, first, last), rows, weights in zip(ctx.blocks, kept[::2], kept[1::2], strict=True):
            grad_rows = grad[:, :, start:stop].reshape(B * K, -1, V)
            grad_value[:, first:last].baddbmm_(weights.transpose(1, 2), grad_rows)
            grad_weights = torch.bmm(grad_rows, value[:, first:last].contiguous().transpose(1, 2))
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            torch.mul(
                torch.bmm(grad_scores, key[:, first:last]).view(B * K, G, -1, E),
                E**-0.5,
                out=grad_query[:, :, start:stop],
            )
            grad_key[:, first:last].baddbmm_(grad_scores.transpose(1, 2), rows)
        grad_query_key[:, -1] = grad_key
        return grad_query_key.view(B, K, G + 1, L, E), grad_value.view(B, K, 1, L, V), None, None

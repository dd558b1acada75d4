"""Passes on a CPU that compute no padding, no prefix twice, and logits only where they are asked for.

The tokens of all rows stand behind one another in one row, tokens with which several rows begin (a prompt before two
answers, a question before its choices) stand there once, and attention is computed piece by piece. Results are those of
padded rows up to rounding.

Legend: B rows, T tokens of the longest row, N computed tokens, L wanted tokens, H heads, D width, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import training.generate.model_folder  # noqa: F401 - first: it keeps what is imported after it offline and quiet

# isort: split
import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from training.contract.process.device_kind import kind_of
from training.generate.passes.attention import attending, in_fp32
from training.generate.spread import is_spread

# Families whose layers treat each position by itself, except in attention that takes nothing but scaled products.
FAMILIES = ("llama", "mistral", "olmo2", "olmo3", "qwen2", "qwen3", "qwen3_moe")
PIECES = "pedigree_pieces"  # the name of the attention, as transformers knows it
# Tokens that rows must have in common at their beginning to share them. In training each piece costs as much as some
# dozen tokens of a small model (docs/log/decisions/0047-passes-without-padding.md).
LEAST_SHARED = 48
LEAST_READ = 4  # where answers are only scored
SLACK = 4  # tokens by which rows are padded whose attention is then computed at once
BLOCK = 256  # queries whose attention is computed at once
TILE_LOGITS = 2**20  # numbers in the logits that are computed at once, which fit into a processor's cache
UNWANTED = -100  # the label of a token whose log-probability nobody asks for


def why_padded(model: Any) -> str:
    """Return the reason why a model cannot make passes without padding; empty if it can."""
    config = model.config
    if (kind := kind_of(model.device)) != "cpu":
        return f"the model is on a device of type {kind}"
    if is_spread(model):
        return "the model is divided among processes"
    if config.model_type not in FAMILIES:
        return f"models of the family {config.model_type} are not among {', '.join(FAMILIES)}"
    if getattr(config, "attention_dropout", 0.0):
        return "the model has dropout in its attention"
    window = getattr(config, "sliding_window", None)
    if window and window < config.max_position_embeddings:
        return f"the model's attention has a window of {window} tokens"
    if getattr(config, "output_router_logits", False):
        return "the loss takes the router's balance"
    # transformers 5.23 renamed it, and warns about the old name.
    checkpointing = "is_activation_checkpointing"
    if getattr(model, checkpointing if hasattr(model, checkpointing) else "is_gradient_checkpointing", False):
        return "activation_checkpointing computes each layer twice"
    return ""


def of_tails(model: Any, rows: Sequence[Sequence[int]], tails: Sequence[int]) -> list[tuple[float, bool]]:
    """Return for each row the log-probability in nats of its last tokens, and whether greedy decoding gives them.

    `tails` are the numbers of these tokens. `why_padded` must be empty. At least one token stands before a tail.
    """
    width, device = max(map(len, rows)), model.device
    tokens_BT = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    lengths_B = torch.tensor([len(row) for row in rows], device=device)
    at_T = torch.arange(width, device=device)
    attended_BT = at_T < lengths_B[:, None]
    in_tail_BT = attended_BT & (at_T >= (lengths_B - torch.tensor(tails, device=device))[:, None])
    if not in_tail_BT.any():
        return [(0.0, True)] * len(rows)
    labels_BT = tokens_BT.masked_fill(~in_tail_BT, UNWANTED)
    named = {"input_ids": tokens_BT, "attention_mask": attended_BT, "labels": labels_BT}
    _, states_LD, wanted_L = states_before(model, named, least=LEAST_READ)
    outputs = ("log_probs", "is_top1")
    log_probs_L, *_, is_top1_L = of_tokens(model.get_output_embeddings(), states_LD, wanted_L, outputs)
    assert log_probs_L is not None and is_top1_L is not None, "both were asked for"
    parts = zip(log_probs_L.split(list(tails)), is_top1_L.split(list(tails)), strict=True)
    return [(float(log_probs.sum()), bool(is_top1.all())) for log_probs, is_top1 in parts]


def states_before(model: Any, named: Mapping[str, Any], *, least: int = LEAST_SHARED) -> tuple[Tensor, Tensor, Tensor]:
    """Run the model without padding; return which tokens have a label, the states that predict them, and the tokens.

    They are [B, T-1] (of all tokens but the first), [L, D] and [L].

    `named` has `input_ids`, `attention_mask` and `labels`, each [B, T]. Beginnings of `least` tokens are read once.
    """
    mask_BT = named["labels"][:, 1:] != UNWANTED
    packed = pack(named["input_ids"], named["attention_mask"].bool(), mask_BT, least=least)
    with attending(model.config, PIECES):
        hidden_ND = model.base_model(
            input_ids=packed.tokens_N[None],
            position_ids=packed.positions_N[None],
            use_cache=False,
            pieces=packed.pieces,
        ).last_hidden_state[0]
    return mask_BT, hidden_ND[packed.before_L], named["labels"][:, 1:][mask_BT]


# Packing


@dataclass(frozen=True, slots=True)
class RowPiece:
    """Tokens that stand behind one another: the beginning that some rows share, the rest of one row, or whole rows.

    `start` is the number of the piece before it in its row, -1 at the row's beginning. `mask` says which tokens of
    both pieces each of its tokens attends to; None: those up to itself. `rows` are rows of `length` tokens each.
    """

    length: int
    start: int = -1
    mask: Tensor | None = field(default=None, compare=False)
    rows: int = 1

    @property
    def tokens(self) -> int:
        """Number of the tokens in all rows."""
        return self.rows * self.length


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows without padding. `before_L` are the places of the tokens after which a trained token stands."""

    tokens_N: Tensor
    positions_N: Tensor
    pieces: tuple[RowPiece, ...]
    before_L: Tensor


def pack(tokens_BT: Tensor, attended_BT: Tensor, trained_BT: Tensor, *, least: int = LEAST_SHARED) -> Packed:
    """Pack padded rows into one row without padding, in which a beginning that several rows share stands once.

    `trained_BT` [B, T-1] says of each token but the first whether its log-probability is wanted.

    Tokens after the last one that is needed are left out. Beginnings of `least` tokens are shared. Other rows are
    ordered by length, and those of almost one length are padded with up to SLACK tokens, whose states nobody reads.
    """
    rows: list[list[int]] = []
    wanted: list[list[int]] = []  # of each row: places in the row of the tokens before those that are trained
    for tokens_T, attended_T, trained_T in zip(tokens_BT, attended_BT, trained_BT, strict=True):
        place_T = attended_T.cumsum(0) - 1
        wanted.append(place_T[:-1][trained_T].tolist())
        rows.append(tokens_T[attended_T].tolist()[: wanted[-1][-1] + 1] if wanted[-1] else [])
    pieces: list[RowPiece] = []
    tokens: list[int] = []
    positions: list[int] = []
    place: list[list[int]] = [[] for _ in rows]

    def add(some: Sequence[int], first: int) -> list[int]:
        tokens.extend(some)
        positions.extend(range(first, first + len(some)))
        return list(range(len(tokens) - len(some), len(tokens)))

    alone: list[int] = []
    for members, shared in _families(rows, least):
        if not shared:
            alone += members
            continue
        start, beginning = len(pieces), add(rows[members[0]][:shared], 0)
        pieces.append(RowPiece(shared))
        for row in members:
            rest = rows[row][shared:]
            if rest:
                pieces.append(RowPiece(len(rest), start, _mask(shared, len(rest))))
            place[row] = beginning + add(rest, shared)
    for members in _alike(alone, rows):
        length = len(rows[members[0]])
        pieces.append(RowPiece(length, rows=len(members)))
        for row in members:
            place[row] = add(rows[row] + rows[row][-1:] * (length - len(rows[row])), 0)
    before = [places[at] for places, some in zip(place, wanted, strict=True) for at in some]
    device = tokens_BT.device
    return Packed(
        tokens_N=torch.tensor(tokens, device=device),
        positions_N=torch.tensor(positions, device=device),
        pieces=tuple(pieces),
        before_L=torch.tensor(before, device=device),
    )


def _families(rows: Sequence[Sequence[int]], least: int) -> Iterator[tuple[list[int], int]]:
    """Group rows by a common prefix: yield the numbers of rows and the prefix's length, 0 for a row by itself."""
    members: list[int] = []
    shared = 0
    order = sorted((list(row), number) for number, row in enumerate(rows) if row)
    for row in (number for _, number in order):
        common = _common(rows[members[0]], rows[row]) if members else 0
        both = min(common, shared) if len(members) > 1 else common
        if members and both >= least and both * len(members) >= shared * (len(members) - 1):
            members, shared = [*members, row], both
            continue
        if members:
            yield members, shared
        members, shared = [row], 0
    if members:
        yield members, shared


def _alike(numbers: Sequence[int], rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield groups of row numbers, the longest rows first; in a group no row is more than SLACK tokens shorter."""
    group: list[int] = []
    for row in sorted(numbers, key=lambda number: -len(rows[number])):
        if group and len(rows[row]) < len(rows[group[0]]) - SLACK:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix of two rows."""
    return next(
        (n for n, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs),
        min(len(one), len(other)),
    )


def _mask(shared: int, rest: int) -> Tensor:
    return torch.ones(rest, shared + rest, dtype=torch.bool).tril(shared)


# Attention


def attention_of_pieces(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    pieces: Sequence[RowPiece],
    **_: Any,
) -> tuple[Tensor, None]:
    """Return the attention of the pieces [1, N, H, D], from query, key and value [1, H, N, D]."""
    del module, attention_mask
    repeats, device = query.shape[1] // key.shape[1], query.device.type
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        given = (query[0] * scaling).to(dtype), key[0].to(dtype), value[0].to(dtype)
        return _BlockAttention.apply(*given, pieces)[None], None
    spans = _spans(pieces)
    made = []
    for piece, span in zip(pieces, spans, strict=True):
        own, known, said = (_in_rows(one[0], span, piece).transpose(0, 1) for one in (query, key, value))
        if piece.start >= 0:
            known, said = (
                torch.cat([one[:, :, spans[piece.start]], own], 2) for one, own in ((key, known), (value, said))
            )
        some = in_fp32(own, known, said, attn_mask=piece.mask, is_causal=piece.mask is None, scale=scaling)
        made.append(some.flatten(0, 1)[None])
    return torch.cat(made, 1), None


def _spans(pieces: Sequence[RowPiece]) -> list[slice]:
    """Return the range of tokens that each piece has in the packed row."""
    ends = itertools.accumulate(piece.tokens for piece in pieces)
    return [slice(end - piece.tokens, end) for piece, end in zip(pieces, ends, strict=True)]


def _in_rows(tensor: Tensor, span: slice, piece: RowPiece) -> Tensor:
    """Return a piece's part of a tensor [H, N, D] as a view [H, rows, length, D]."""
    return tensor[:, span].unflatten(1, (piece.rows, piece.length))


class _BlockAttention(torch.autograd.Function):
    """Attention of pieces [N, H, D], in the precision of its inputs [H, N, D].

    It is computed in blocks of queries, each with the keys up to its end: for short rows in bf16 this is faster than
    flash attention in fp32, which torch has for a CPU.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, pieces: Sequence[RowPiece]) -> Tensor:
        made = value.new_empty((value.shape[1], value.shape[0], value.shape[2]))
        kept = []
        for one in _blocks(pieces):
            scores = one.own(query) @ one.read(key).transpose(2, 3)
            size = scores.shape[2]
            scores[..., -size:].masked_fill_(_later()[:size, :size], -torch.inf)
            kept.append(scores.softmax(-1))
            one.own(made.transpose(0, 1)).copy_(kept[-1] @ one.read(value))
        ctx.save_for_backward(query, key, value)
        ctx.pieces, ctx.kept = pieces, kept
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        query, key, value = ctx.saved_tensors
        gradient = gradients[0].transpose(0, 1).contiguous()
        of_query, of_key, of_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for one, weights in zip(_blocks(ctx.pieces), ctx.kept, strict=True):
            slope = one.own(gradient) @ one.read(value).transpose(2, 3)
            slope = torch._softmax_backward_data(slope, weights, -1, weights.dtype)
            one.own(of_query).copy_(slope @ one.read(key))
            one.add(of_key, slope.transpose(2, 3) @ one.own(query))
            one.add(of_value, weights.transpose(2, 3) @ one.own(gradient))
        return of_query, of_key, of_value, None


@cache
def _later() -> Tensor:
    """Return whether the second of two tokens of a block [BLOCK, BLOCK] stands after the first."""
    return torch.ones(BLOCK, BLOCK, dtype=torch.bool).triu(1)


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries of a piece, and the keys that they attend to: those before the piece, and its own up to the last query.

    Its methods take tensors [H, N, D], and read and return [H, rows, queries or keys, D].
    """

    piece: RowPiece
    span: slice
    before: slice | None
    queries: slice

    def own(self, tensor: Tensor) -> Tensor:
        """Return a packed tensor [H, N, D] at the positions of this block's queries: a view [H, rows, queries, D]."""
        return _in_rows(tensor, self.span, self.piece)[:, :, self.queries]

    def read(self, tensor: Tensor) -> Tensor:
        """Return a packed tensor [H, N, D] at the positions that this block's queries attend to: [H, rows, keys, D]."""
        own = _in_rows(tensor, self.span, self.piece)[:, :, : self.queries.stop]
        return own if self.before is None else torch.cat([tensor[:, None, self.before], own], 2)

    def add(self, total: Tensor, some: Tensor) -> None:
        """Add gradients of these keys, or of their values, to their places in the packed tensor `total`."""
        if self.before is not None:
            ahead = self.before.stop - self.before.start
            total[:, None, self.before] += some[:, :, :ahead]
            some = some[:, :, ahead:]
        _in_rows(total, self.span, self.piece)[:, :, : self.queries.stop] += some


def _blocks(pieces: Sequence[RowPiece]) -> Iterator[_Block]:
    spans = _spans(pieces)
    for piece, span in zip(pieces, spans, strict=True):
        for start in range(0, piece.length, BLOCK):
            queries = slice(start, min(start + BLOCK, piece.length))
            yield _Block(piece, span, spans[piece.start] if piece.start >= 0 else None, queries)


ALL_ATTENTION_FUNCTIONS.register(PIECES, attention_of_pieces)


# Log-probabilities


def of_tokens(
    head: Any,
    states_LD: Tensor,
    tokens_L: Tensor,
    outputs: tuple[str, ...],
    *,
    temperature: float = 1.0,
) -> tuple[Tensor | None, ...]:
    """Return log-probability, entropy, log of the sum of squared probabilities, mean logit and whether it is likeliest.

    Each is of all tokens [L] after the states; None if it is not among `outputs`. `head` is the model's last layer.
    """
    device = states_LD.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states_LD.dtype
    keeps = torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        return _LogProbs.apply(
            states_LD.to(dtype), head.weight.to(dtype), head.bias, tokens_L, temperature, outputs, keeps
        )


class _LogProbs(torch.autograd.Function):
    """Log-probabilities of tokens, whose probabilities are kept for the backward pass in the products' precision."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_LD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_L: Tensor,
        temperature: float,
        outputs: tuple[str, ...],
        keeps: bool,
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        found: dict[str, list[Tensor]] = {}
        kept = hidden_LD.new_empty((len(targets_L), len(weight_VD)) if keeps else (0, 0))
        rows = max(1, TILE_LOGITS // len(weight_VD))
        for start in range(0, len(targets_L), rows):
            some = slice(start, start + rows)
            logits = functional.linear(
                hidden_LD[some], weight_VD, None if bias_V is None else bias_V.to(hidden_LD.dtype)
            )
            probabilities = _tile(logits.float().div_(temperature), targets_L[some], outputs, found)
            if keeps:
                kept[some] = probabilities
        told = {name: torch.cat(parts) for name, parts in found.items()}
        if keeps:
            ctx.save_for_backward(hidden_LD, weight_VD, bias_V, targets_L, told["log_probs"], told.get("entropy"))
            ctx.kept, ctx.temperature = kept, temperature
        ctx.mark_non_differentiable(*(told[name] for name in told if name not in ("log_probs", "entropy")))
        return tuple(told.get(name) for name in ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1"))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        of_log_probs, of_entropy, *_ = gradients
        hidden_LD, weight_VD, bias_V, targets_L, log_probs_L, entropy_L = ctx.saved_tensors
        kept_LV = ctx.kept
        gradient_L = torch.zeros_like(log_probs_L) if of_log_probs is None else of_log_probs
        if of_entropy is None:
            slope_LV = kept_LV.mul_(-gradient_L.to(kept_LV.dtype)[:, None])
            own_L = gradient_L * -torch.expm1(log_probs_L)
        else:
            # The entropy's slope is -p·(log p + entropy).
            known_LV = kept_LV.float()
            bent_LV = torch.xlogy(known_LV, known_LV).addcmul_(known_LV, entropy_L[:, None])
            slope_LV = (-gradient_L[:, None] * known_LV - of_entropy[:, None] * bent_LV).to(kept_LV.dtype)
            likely_L = log_probs_L.exp()
            own_L = gradient_L * (1 - likely_L) - of_entropy * likely_L * (log_probs_L + entropy_L)
        slope_LV.scatter_(1, targets_L[:, None], own_L[:, None].to(slope_LV.dtype))
        if ctx.temperature != 1:
            slope_LV.div_(ctx.temperature)
        of_bias = None if bias_V is None else slope_LV.sum(0, dtype=bias_V.dtype)
        return slope_LV @ weight_VD, slope_LV.t() @ hidden_LD, of_bias, None, None, None, None


def _tile(logits_LV: Tensor, targets_L: Tensor, outputs: tuple[str, ...], found: dict[str, list[Tensor]]) -> Tensor:
    """Return the probabilities, and add what is asked for of each token to `found`. The logits are overwritten."""

    def tell(name: str, made: Callable[[], Tensor]) -> None:
        if name == "log_probs" or name in outputs:
            found.setdefault(name, []).append(made())

    tell("mean_logits", lambda: logits_LV.mean(-1))
    highest_L1 = logits_LV.amax(-1, keepdim=True)
    logits_LV.sub_(highest_L1)
    own_L = logits_LV.gather(1, targets_L[:, None])[:, 0]
    tell("is_top1", lambda: _is_first(own_L, logits_LV, targets_L))
    weights_LV = logits_LV.exp()
    sums_L = weights_LV.sum(-1)
    tell("log_probs", lambda: own_L - sums_L.log())
    tell("entropy", lambda: sums_L.log() - (weights_LV * logits_LV).sum(-1) / sums_L)
    weights_LV.div_(sums_L[:, None])
    tell("log_sum_sq_probs", lambda: weights_LV.square().sum(-1).log())
    return weights_LV


def _is_first(own_L: Tensor, below_LV: Tensor, targets_L: Tensor) -> Tensor:
    """Return whether a target is the first of the likeliest tokens. `below_LV` are logits minus the highest one."""
    is_top_L = own_L == 0
    # Few targets are; to look for the first one among all logits would take longer than the rest.
    is_top_L[is_top_L.clone()] = below_LV[is_top_L].argmax(-1) == targets_L[is_top_L]
    return is_top_L

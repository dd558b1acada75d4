"""Mixture of experts in place of an MLP: every token is sent to its best experts, and none is dropped.

Shape letters as in `decoder.py`, and X experts, N = B · L tokens, k experts for each token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from training.pretrain.models.collectives import Lanes, exchanged
from training.pretrain.models.layers import Product, feed_forward, lean_linear, linear, unit_rms
from training.pretrain.models.shape import ModelConfig


class Routing(NamedTuple):
    """One layer's routing: the balancing loss summed over rows (scalar), and the tokens sent to each expert (`[X]`)."""

    balance: Tensor
    loads: Tensor


class Experts(nn.Module):
    """A router, its experts, and the shared experts that see every token (together one MLP of their summed width).

    Each process of `lanes.expert` has some of the experts, and tokens of its own.
    """

    lanes = Lanes()

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        self.is_lean = False  # keep no copies of weights; see `lean_linear`
        experts, width = config.experts, config.width
        gated = config.activation == "swiglu"
        self.norm = nn.Parameter(torch.ones(width))
        self.router = nn.Parameter(torch.empty(experts.count, width))
        self.gate = nn.Parameter(torch.empty(experts.count, experts.width, width)) if gated else None
        self.up = nn.Parameter(torch.empty(experts.count, experts.width, width))
        self.down = nn.Parameter(torch.empty(experts.count, width, experts.width))
        if experts.shared:
            joint = experts.shared * experts.width
            self.shared_gate = nn.Parameter(torch.empty(joint, width)) if gated else None
            self.shared_up = nn.Parameter(torch.empty(joint, width))
            self.shared_down = nn.Parameter(torch.empty(width, joint))
        if experts.balancing == "bias":
            self.register_buffer("bias", torch.zeros(experts.count))

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, Routing]:
        """Return the layer's output `[B, L, D]` and its routing."""
        unit = unit_rms(x_BLD, self.config.norm_epsilon) * self.norm.to(x_BLD.dtype)
        # Small differences decide the choice, so the router always computes in fp32.
        scores = self.scored(F.linear(unit.float(), self.router.float()))  # [B, L, X]
        chosen, weights = self.choose(scores)
        mixed = self._dispatch(unit.flatten(0, 1), chosen.flatten(0, 1), weights.flatten(0, 1)).view_as(unit)
        if self.config.experts.shared:
            shared = {"gate": self.shared_gate, "up": self.shared_up, "down": self.shared_down}
            mixed = mixed + feed_forward(unit, **shared, product=self._product)
        return mixed, self._routing(scores, chosen)

    def scored(self, logits: Tensor) -> Tensor:
        """Return the score of each expert for each token, given the router's products `[B, L, X]`."""
        return torch.softmax(logits, dim=-1)

    def ranked(self, scores: Tensor) -> Tensor:
        """Return the scores by which experts are chosen: the router's, plus the balancing bias if there is one."""
        return scores + self.bias if self.config.experts.balancing == "bias" else scores

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers and weights of every token's experts, each `[B, L, k]`.

        A bias changes the choice, not the weights.
        """
        experts = self.config.experts
        chosen = self.ranked(scores).topk(experts.active, dim=-1).indices
        weights = scores.gather(-1, chosen)
        return chosen, weights / weights.sum(dim=-1, keepdim=True) if experts.normalize_weights else weights

    def _dispatch(self, unit_ND: Tensor, chosen_Nk: Tensor, weights_Nk: Tensor) -> Tensor:
        """Return the weighted sum of each token's expert outputs.

        The (token, expert) pairs are sorted by expert, so that each expert runs once on all its tokens.
        """
        tokens, active = chosen_Nk.shape
        pairs = chosen_Nk.flatten()
        order = pairs.argsort(stable=True)
        place = order.argsort()
        # Not torch.bincount: on a GPU it waits for the largest number.
        sizes = pairs.new_zeros(self.config.experts.count).scatter_add_(0, pairs, torch.ones_like(pairs))
        done = self._all_experts(_Spread.apply(unit_ND, order, place, active), sizes)
        sent = _Permuted.apply(done, place, order).view(tokens, active, -1)
        return (sent * weights_Nk[..., None].to(sent.dtype)).sum(dim=1)

    def _all_experts(self, sorted_ND: Tensor, sizes_X: Tensor) -> Tensor:
        """Return the outputs of all experts for tokens that are sorted by expert, in the same order."""
        if self.lanes.expert is None:
            return self._run(sorted_ND, sizes_X)
        # Counts of tokens, with a row for each process: tokens that this process sends, and that its experts receive.
        sent = sizes_X.view(dist.get_world_size(self.lanes.expert), -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent.contiguous(), group=self.lanes.expert)
        size, own = received.shape
        counts = torch.stack((sent, received)).flatten().tolist()  # waits for the device, once
        from_sender = [counts[size * own + at :][:own] for at in range(0, size * own, own)]
        there, here = [sum(counts[at:][:own]) for at in range(0, size * own, own)], [sum(one) for one in from_sender]
        parts = exchanged(sorted_ND, there, here, self.lanes.expert).split([n for one in from_sender for n in one])
        done = self._run(torch.cat([part for expert in range(own) for part in parts[expert::own]]), received.sum(dim=0))
        by_expert = done.split([one[expert] for expert in range(own) for one in from_sender])
        by_sender = zip(*(by_expert[at : at + size] for at in range(0, len(by_expert), size)), strict=True)
        return exchanged(torch.cat([part for parts in by_sender for part in parts]), here, there, self.lanes.expert)

    def _run(self, sorted_ND: Tensor, sizes_X: Tensor) -> Tensor:
        """Run each expert of this process on its tokens, which are contiguous in `sorted_ND`."""
        if has_grouped_products(sorted_ND, self.up):
            product = grouped_product(sizes_X, is_lean=self.is_lean)
            given = {"gate": self.gate, "up": self.up, "down": self.down}
            return feed_forward(sorted_ND, **given, recompute=self.recompute, product=product)
        runs = sorted_ND.split(sizes_X.tolist())
        return torch.cat(
            [
                feed_forward(run, gate=gate, up=up, down=down, recompute=self.recompute, product=self._product)
                for run, gate, up, down in zip(runs, *self._weights(sorted_ND.dtype), strict=True)
            ]
        )

    def _routing(self, scores: Tensor, chosen: Tensor) -> Routing:
        """Return the load-balancing loss, summed over rows, and the number of tokens sent to each expert.

        The loss of a row is X · Σ (share of the row's tokens sent to an expert) · (its mean score in the row). It is
        taken for each row, so that neither the micro-batch nor the number of processes changes it. If other processes
        have some of the row's positions, this is the part of this process's positions: the loss is linear in the
        scores.
        """
        B, L, X = scores.shape
        counts = torch.zeros(B, X, device=scores.device)
        counts.scatter_add_(1, chosen.flatten(1), torch.ones(chosen.flatten(1).shape, device=scores.device))
        length = L * self.lanes.parts
        shares = self.lanes.row_counts(counts) / length
        return Routing(X * (shares * scores.mean(dim=1)).sum() / self.lanes.parts, counts.sum(dim=0))

    def _weights(self, dtype: torch.dtype) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the weights gate, up and down of all experts in `dtype`, converted once per pass.

        A lean layer's product converts them instead.
        """
        dtype = self.up.dtype if self.is_lean else dtype
        # unbind instead of indexing: the gradient of each indexing would be as large as all experts together.
        gates = (None,) * len(self.up) if self.gate is None else self.gate.to(dtype).unbind()
        return gates, self.up.to(dtype).unbind(), self.down.to(dtype).unbind()

    @property
    def _product(self) -> Product:
        return lean_linear if self.is_lean else linear

    @torch.no_grad()
    def rebalance(self, load: Tensor) -> None:
        """Raise the router's bias of experts that got fewer tokens than the mean, and lower that of the others.

        The bias of experts that got exactly the mean stays.
        """
        if self.config.experts.balancing == "bias":
            self.bias += self.config.experts.balance_weight * (load.mean() - load).sign()


def has_grouped_products(x: Tensor, weight: Tensor) -> bool:
    """Whether one kernel can compute the products of all experts.

    It can on CUDA, in bf16, with rows of a multiple of 16 bytes. The kernel reads the number of tokens of each expert
    on the device.
    """
    return x.device.type == "cuda" and x.dtype == torch.bfloat16 and not any(side % 8 for side in weight.shape[1:])


def grouped_product(sizes_X: Tensor, *, is_lean: bool = False) -> Product:
    """Return a product that applies each matrix of `weight` `[X, outputs, inputs]` to its run of tokens.

    The runs follow one another in `x`; `sizes_X` are their lengths. If it `is_lean`, it keeps no copy of the weights.
    """
    ends = sizes_X.cumsum(dim=0, dtype=torch.int32)

    def product(x: Tensor, weight: Tensor, gain: Tensor | None = None) -> Tensor:
        assert gain is None, "the experts' norm has its gain before the router"
        if is_lean:
            return LeanGroupedMM.apply(x, weight, ends)
        return F.grouped_mm(x, weight.to(x.dtype).transpose(1, 2), offs=ends)

    return product


class LeanGroupedMM(torch.autograd.Function):
    """Products of runs of tokens with the matrices of experts, without keeping the matrices in the dtype of `x`."""

    @staticmethod
    def forward(ctx, x, weight, ends):
        ctx.save_for_backward(x, weight, ends)
        return F.grouped_mm(x, weight.to(x.dtype).transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx, grad):
        x, weight, ends = ctx.saved_tensors
        to_x = F.grouped_mm(grad, weight.to(x.dtype), offs=ends)
        return to_x, F.grouped_mm(grad.t(), x, offs=ends).to(weight.dtype), None


class _Spread(torch.autograd.Function):
    """Gather row `order // k` of the tokens for each (token, expert) pair.

    The backward pass gathers too: adding into rows in place would make the result depend on the order of threads.
    """

    @staticmethod
    def forward(ctx, unit, order, place, active):
        ctx.active = active
        ctx.save_for_backward(place)
        return unit[order // active]

    @staticmethod
    def backward(ctx, grad):
        (place,) = ctx.saved_tensors
        return grad[place].view(-1, ctx.active, grad.shape[-1]).sum(dim=1), None, None, None


class _Permuted(torch.autograd.Function):
    """Return rows in the order of `index`; the backward pass applies `inverse`, the inverse permutation."""

    @staticmethod
    def forward(ctx, x, index, inverse):
        ctx.save_for_backward(inverse)
        return x[index]

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        return grad[inverse], None, None

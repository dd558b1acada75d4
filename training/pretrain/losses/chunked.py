"""A loss of the head's output, computed in chunks so that full fp32 logits never exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from training.contract.parts.outside import named
from training.contract.process.device_kind import kind_of
from training.order.loss_mask import IGNORED
from training.pretrain.losses.loss import ChosenLoss, Gradients, LogitRows, nats
from training.pretrain.models.layers import softcapped

CHUNK = 1024  # rows whose logits exist at the same time
GPU_LOGITS = 2**27  # of them on a GPU, if that is more: fewer sums of the head's fp32 gradient, and larger products
TILE = 64  # rows that a CPU turns from logits into gradients while they are in its cache
GPU_TILE = 256  # rows of a GPU for a loss that needs several fp32 copies of its logits


class Taught(NamedTuple):
    """A teacher's last states `[N, D]` and its head `[V, D]`, whose width may differ from the student's."""

    states: Tensor
    head: Tensor


class ChunkedLoss:
    """A loss of hidden states through a head, whose logits are soft-capped first (0: not), as are a teacher's."""

    def __init__(self, chosen: ChosenLoss, *, softcap: float = 0.0, teacher_softcap: float = 0.0) -> None:
        self.chosen, self.softcap, self.teacher_softcap = chosen, softcap, teacher_softcap

    def __call__(
        self,
        hidden_ND: Tensor,
        head_VD: Tensor,
        targets_N: Tensor,
        *,
        scale: float,
        taught: Taught | None = None,
        compiled: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective to minimize, its likelihood part, and the nats of each target: fp32, `[]`, `[]`, `[N]`.

        The first two are `scale` times the sums, over targets that are not IGNORED, of the loss and of the negative
        log-likelihood in nats. Only the objective has a gradient, and a teacher gets none. If `compiled`, torch
        compiles what is between the products.

        `targets_N[i]` is the token to predict at position i: for next tokens, the batch was made with targets already
        shifted.
        """
        to_gradients = self.compiled_to_gradients if compiled else self.to_gradients
        is_lean = self.chosen.part.gradients is not None and taught is None  # with few copies of its logits
        given = (hidden_ND, head_VD, targets_N, scale, taught, self._named(to_gradients), is_lean)
        objective, likelihood, each = _Chunked.apply(*given)
        return objective, likelihood, each

    def to_gradients(self, rows: LogitRows, scale: float, *, by_hand: bool = True) -> tuple[Tensor, Tensor]:
        """Overwrite the logits with d objective / d logits.

        Return the sums of loss and likelihood, fp32 `[2]`, and each target's nats. Only the gradients have the scale.
        They are by the loss's own form if it has one and if `by_hand`; otherwise torch differentiates it.
        """
        trained = rows.targets != IGNORED
        capped = softcapped(rows.logits.float(), self.softcap) if self.softcap else rows.logits
        taught = None if rows.taught is None else softcapped(rows.taught.float(), self.teacher_softcap)
        given, weights = LogitRows(capped, rows.targets, taught), trained * scale
        chosen = self.chosen
        if by_hand and chosen.part.gradients:
            made = chosen.part.gradients(given, weights, chosen.recipe, chosen.settings)
        else:
            made = self._differentiated(given, weights)
        if self.softcap:
            made.gradients.mul_(1 - (capped / self.softcap).square())
        rows.logits.copy_(made.gradients)
        each = made.nats * trained
        return torch.stack(((made.values * trained).sum(), each.sum())), each

    @cached_property
    def compiled_to_gradients(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """The arithmetic from logits to the gradients of the loss's values, which torch compiles when it first runs."""
        return torch.compile(partial(self.to_gradients, by_hand=False))

    def _differentiated(self, rows: LogitRows, weights: Tensor) -> Gradients:
        def weighted(logits: Tensor) -> tuple[Tensor, Tensor]:
            values = self.chosen.part.values(rows._replace(logits=logits), self.chosen.recipe, self.chosen.settings)
            return (values * weights).sum(), values

        gradients, values = torch.func.grad(weighted, has_aux=True)(rows.logits.float())
        return Gradients(values, nats(rows), gradients)

    def _named(self, call: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
        """Return a function whose errors have the name of a loss from outside, and which may take long to compile."""
        if not self.chosen.who:
            return call

        def called(rows: LogitRows, scale: float) -> tuple[Tensor, Tensor]:
            with named(self.chosen.who, "failed", trains=True):
                return call(rows, scale)

        return called


def token_losses(hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor, *, softcap: float = 0.0) -> Tensor:
    """Return the negative log-likelihood of each target in nats, fp32 `[N]`, without gradient; 0 for IGNORED."""
    parts = []
    with torch.no_grad():
        for hidden, targets in zip(hidden_ND.split(CHUNK), targets_N.split(CHUNK), strict=True):
            parts.append(nats(LogitRows(softcapped((hidden @ head_VD.t()).float(), softcap), targets)))
    return torch.cat(parts)


def target_scores(hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor, *, softcap: float = 0.0) -> Tensor:
    """Return the nats of each target, and 1 if another token is likelier: fp32 `[2, N]`, 0 for IGNORED.

    Logits are computed only where there is a target.
    """
    scores = torch.zeros(2, len(targets_N), device=targets_N.device)
    for places in (targets_N != IGNORED).nonzero()[:, 0].split(CHUNK):
        logits, targets = softcapped((hidden_ND[places] @ head_VD.t()).float(), softcap), targets_N[places]
        scores[:, places] = torch.stack((nats(LogitRows(logits, targets)), (logits.argmax(-1) != targets).float()))
    return scores


def chunk_rows(vocabulary: int, *, on_gpu: bool) -> int:
    """Return the number of rows whose logits exist at the same time in a training step."""
    return max(CHUNK, GPU_LOGITS // vocabulary) if on_gpu else CHUNK


class _Chunked(torch.autograd.Function):
    """Computes the gradients during the forward pass, while a chunk's logits exist anyway (as liger-kernel does)."""

    @staticmethod
    def forward(ctx, hidden_ND, head_VD, targets_N, scale, taught, to_gradients, is_lean):
        sums = torch.zeros(2, dtype=torch.float32, device=hidden_ND.device)
        grad_hidden = torch.empty_like(hidden_ND)
        grad_head = torch.zeros_like(head_VD, dtype=torch.float32)
        each = list[Tensor]()
        on_gpu = kind_of(hidden_ND.device) != "cpu"
        chunk = chunk_rows(len(head_VD), on_gpu=on_gpu and is_lean)
        for start in range(0, len(hidden_ND), chunk):
            own = slice(start, start + chunk)
            others = None if taught is None else taught.states[own] @ taught.head.t()
            rows = LogitRows(hidden_ND[own] @ head_VD.t(), targets_N[own], others)
            for tile in tiles(rows, TILE if not on_gpu else chunk if is_lean else GPU_TILE):
                of_tile, nats_of_tile = to_gradients(tile, scale)
                sums += of_tile
                each.append(nats_of_tile)
            torch.mm(rows.logits, head_VD, out=grad_hidden[own])
            grad_head += rows.logits.t() @ hidden_ND[own]
        ctx.save_for_backward(grad_hidden, grad_head.to(head_VD.dtype))
        objective, likelihood = (sums * scale).unbind()
        nats_N = torch.cat(each)
        ctx.mark_non_differentiable(likelihood, nats_N)
        return objective, likelihood, nats_N

    @staticmethod
    def backward(ctx, grad, *_):
        grad_hidden, grad_head = ctx.saved_tensors
        return grad_hidden * grad, grad_head * grad, None, None, None, None, None


def tiles(rows: LogitRows, size: int) -> Iterator[LogitRows]:
    """Yield views of so many rows of a chunk, which are turned from logits into gradients at once."""
    for start in range(0, len(rows.targets), size):
        own = slice(start, start + size)
        yield LogitRows(rows.logits[own], rows.targets[own], None if rows.taught is None else rows.taught[own])

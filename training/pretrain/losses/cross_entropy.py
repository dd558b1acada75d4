"""Cross-entropy of the head's output, computed in chunks so that full fp32 logits never exist."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from training.contract.process.device_kind import kind_of
from training.order.loss_mask import IGNORED
from training.pretrain.models.layers import softcapped

CHUNK = 1024  # rows whose logits exist at the same time
GPU_LOGITS = 2**27  # of them on a GPU, if that is more: fewer sums of the head's fp32 gradient, and larger products
TILE = 64  # rows that a CPU turns from logits into gradients while they are in its cache


def next_token_loss(
    hidden_ND: Tensor,
    head_VD: Tensor,
    targets_N: Tensor,
    *,
    scale: float,
    softcap: float = 0.0,
    z_loss: float = 0.0,
    compiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the objective to minimize and its likelihood part: two fp32 scalars, equal without `z_loss`.

    The objective is `scale` times the sum, over targets that are not IGNORED, of the negative log-likelihood in nats
    and of `z_loss` · log²Z, where Z is the softmax's denominator (arXiv 2204.02311). The likelihood part has no
    gradient. `softcap` caps the logits first. If `compiled`, torch compiles what is between the products.

    `targets_N[i]` is the token to predict at position i: for next tokens, the batch was made with targets already
    shifted.
    """
    objective, likelihood = _ChunkedLoss.apply(hidden_ND, head_VD, targets_N, scale, softcap, z_loss, compiled)
    return objective, likelihood


def token_losses(hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor, *, softcap: float = 0.0) -> Tensor:
    """Return the negative log-likelihood of each target in nats, fp32 `[N]`, without gradient; 0 for IGNORED."""
    parts = []
    with torch.no_grad():
        for hidden, targets in zip(hidden_ND.split(CHUNK), targets_N.split(CHUNK), strict=True):
            logits = softcapped((hidden @ head_VD.t()).float(), softcap)
            picked = torch.log_softmax(logits, dim=-1).gather(1, targets.clamp(min=0)[:, None])[:, 0]
            parts.append(torch.where(targets == IGNORED, 0.0, -picked))
    return torch.cat(parts)


def chunk_rows(vocabulary: int, *, on_gpu: bool) -> int:
    """Return the number of rows whose logits exist at the same time in a training step."""
    return max(CHUNK, GPU_LOGITS // vocabulary) if on_gpu else CHUNK


class _ChunkedLoss(torch.autograd.Function):
    """Computes the gradients during the forward pass, while a chunk's logits exist anyway (as liger-kernel does)."""

    @staticmethod
    def forward(ctx, hidden_ND, head_VD, targets_N, scale, softcap, z_loss, compiled):
        to_gradients = compiled_to_gradients() if compiled else _to_gradients
        sums = torch.zeros(2, dtype=torch.float32, device=hidden_ND.device)
        grad_hidden = torch.empty_like(hidden_ND)
        grad_head = torch.zeros_like(head_VD, dtype=torch.float32)
        on_gpu = kind_of(hidden_ND.device) != "cpu"
        chunk = chunk_rows(len(head_VD), on_gpu=on_gpu)
        rows = chunk if on_gpu else TILE
        for start in range(0, len(hidden_ND), chunk):
            hidden, targets = hidden_ND[start : start + chunk], targets_N[start : start + chunk]
            logits = hidden @ head_VD.t()
            for tile, tile_targets in zip(logits.split(rows), targets.split(rows), strict=True):
                sums += to_gradients(tile, tile_targets, scale=scale, softcap=softcap, z_loss=z_loss)
            torch.mm(logits, head_VD, out=grad_hidden[start : start + chunk])
            grad_head += logits.t() @ hidden
        ctx.save_for_backward(grad_hidden, grad_head.to(head_VD.dtype))
        likelihood, penalty = (sums * scale).unbind()
        ctx.mark_non_differentiable(likelihood)
        return likelihood + penalty, likelihood

    @staticmethod
    def backward(ctx, grad, _):
        grad_hidden, grad_head = ctx.saved_tensors
        return grad_hidden * grad, grad_head * grad, None, None, None, None, None


@cache
def compiled_to_gradients() -> Callable[..., Tensor]:
    """Return the arithmetic from logits to their gradients, which torch compiles when it first runs."""
    return torch.compile(_fused_to_gradients)


def _fused_to_gradients(logits: Tensor, targets: Tensor, *, scale: float, softcap: float, z_loss: float) -> Tensor:
    """Do as `_to_gradients`, by operations on whole rows that a compiler can join into one pass."""
    trained = (targets != IGNORED)[:, None]
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    capped = softcapped(logits.float(), softcap)
    log_p = torch.log_softmax(capped, dim=-1)
    surprise = -(log_p * is_target).sum()  # nothing is IGNORED's column
    gradients = log_p.exp()
    penalty = torch.zeros_like(surprise)
    if z_loss:
        log_z = capped[:, :1] - log_p[:, :1]
        penalty = (z_loss * log_z.square() * trained).sum()
        gradients = gradients * (1 + 2 * z_loss * log_z)
    gradients = (gradients - is_target.float()) * (trained * scale)
    if softcap:
        gradients = gradients * (1 - (capped / softcap).square())
    logits.copy_(gradients)
    return torch.stack((surprise, penalty))


def _to_gradients(logits: Tensor, targets: Tensor, *, scale: float, softcap: float, z_loss: float) -> Tensor:
    """Overwrite `logits` with d loss / d logits and return the unscaled sums of likelihood and z-loss, fp32 `[2]`.

    The gradient is probabilities - one_hot(target) for trained rows; z-loss adds 2 · z_loss · log Z · probabilities.
    """
    trained = (targets != IGNORED)[:, None]
    picked = targets.clamp(min=0)[:, None]
    capped = softcapped(logits.float(), softcap) if softcap else logits
    probabilities = torch.softmax(capped, dim=-1, dtype=torch.float32)
    # The likeliest token's probability is never near 0, so its logarithm is exact. This needs one exponential less than
    # computing log_softmax.
    log_z = capped.amax(dim=-1, keepdim=True).float() - probabilities.amax(dim=-1, keepdim=True).log_()
    surprise = ((log_z - capped.gather(1, picked)) * trained).sum()
    penalty = (z_loss * log_z.square() * trained).sum()
    weight = trained * scale
    gradients = probabilities.mul_(weight * (1 + 2 * z_loss * log_z) if z_loss else weight)
    gradients.scatter_add_(1, picked, -weight)
    if softcap:
        gradients.mul_(1 - (capped / softcap).square())
    logits.copy_(gradients)
    return torch.stack((surprise, penalty))

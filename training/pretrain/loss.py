"""Cross-entropy of the head's output, computed in chunks so that full fp32 logits never exist."""

from __future__ import annotations

import torch
from torch import Tensor

from training.pretrain.loss_mask import IGNORED

CHUNK = 1024


def next_token_loss(hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor, *, scale: float) -> Tensor:
    """`scale` times the sum of the negative log-likelihoods, in nats, of the targets that are not IGNORED; fp32 scalar.

    `targets_N[i]` is the token that follows position i: the shift has been made by whoever made the batch.
    """
    return _ChunkedLoss.apply(hidden_ND, head_VD, targets_N, scale)


def token_losses(hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor) -> Tensor:
    """The negative log-likelihood, in nats, of each target; 0 where it is IGNORED. fp32 `[N]`, no gradient."""
    parts = []
    with torch.no_grad():
        for hidden, targets in zip(hidden_ND.split(CHUNK), targets_N.split(CHUNK), strict=True):
            log_probabilities = torch.log_softmax((hidden @ head_VD.t()).float(), dim=-1)
            picked = log_probabilities.gather(1, targets.clamp(min=0)[:, None])[:, 0]
            parts.append(torch.where(targets == IGNORED, 0.0, -picked))
    return torch.cat(parts)


class _ChunkedLoss(torch.autograd.Function):
    """Makes the gradients during the forward pass, while a chunk's logits are there anyway (as liger-kernel does)."""

    @staticmethod
    def forward(ctx, hidden_ND, head_VD, targets_N, scale):  # type: ignore[no-untyped-def]
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        grad_hidden = torch.empty_like(hidden_ND)
        grad_head = torch.zeros_like(head_VD, dtype=torch.float32)
        for start in range(0, len(hidden_ND), CHUNK):
            hidden, targets = hidden_ND[start : start + CHUNK], targets_N[start : start + CHUNK]
            trained = (targets != IGNORED)[:, None]
            picked = targets.clamp(min=0)[:, None]
            log_probabilities = torch.log_softmax(hidden @ head_VD.t(), dim=-1, dtype=torch.float32)
            total -= (log_probabilities.gather(1, picked) * trained).sum()
            # d loss / d logits = probabilities - one_hot(target), for trained rows.
            grad_logits = log_probabilities.exp_()
            grad_logits.scatter_add_(1, picked, torch.full_like(picked, -1.0, dtype=torch.float32))
            grad_logits = grad_logits.mul_(trained * scale).to(head_VD.dtype)
            torch.mm(grad_logits, head_VD, out=grad_hidden[start : start + CHUNK])
            grad_head += grad_logits.t() @ hidden
        ctx.save_for_backward(grad_hidden, grad_head.to(head_VD.dtype))
        return total * scale

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        grad_hidden, grad_head = ctx.saved_tensors
        return grad_hidden * grad, grad_head * grad, None, None

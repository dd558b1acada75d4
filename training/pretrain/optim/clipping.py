"""Compute and limit the norm of all gradients together."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm over all gradients together, as an fp32 scalar tensor."""
    return torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None])
    )


def clip_gradients(parameters: Iterable[Tensor], *, norm: float | Tensor, limit: float | None) -> None:
    """Scale all gradients so that their joint norm, which is now `norm`, is at most `limit`. None means no limit.

    A norm that is a tensor is not waited for, and the gradients have the same bits.
    """
    if limit is None:
        return
    if isinstance(norm, Tensor):
        share = (limit / norm.double()).clamp(max=1.0).to(norm.dtype)
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], share)
    elif norm > limit:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], limit / norm)

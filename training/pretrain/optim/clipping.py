"""The norm of all gradients together, and its limit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Euclidean norm over all gradients together; fp32 scalar."""
    return torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None])
    )


def clip_gradients(parameters: Iterable[Tensor], *, norm: float, limit: float) -> None:
    """Scale every gradient so that their norm together, now `norm`, is at most `limit`. A limit of 0 leaves them."""
    if limit and norm > limit:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], limit / norm)

"""The pieces that both kinds of MLP are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """`x` scaled to unit root mean square over its last axis (arXiv 1910.07467, without the gain)."""
    return _UnitRMS.apply(x, eps) if x.device.type == "cpu" else F.rms_norm(x, (x.shape[-1],), eps=eps)


class _UnitRMS(torch.autograd.Function):
    """By hand on a CPU, where torch has no fused form: its own takes twice the passes over memory."""

    @staticmethod
    def forward(ctx, x, eps):
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
        inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)
        unit = x * inverse
        ctx.save_for_backward(unit, inverse)
        return unit

    @staticmethod
    def backward(ctx, grad):
        unit, inverse = ctx.saved_tensors
        along = (grad * unit).mean(dim=-1, keepdim=True)
        return (unit * along).neg_().add_(grad).mul_(inverse), None


class Product(Protocol):
    """How a weight is applied to `x`; `linear` says what comes of it."""

    def __call__(self, x: Tensor, weight: Tensor, gain: Tensor | None = None) -> Tensor: ...


def linear(x: Tensor, weight: Tensor, gain: Tensor | None = None) -> Tensor:
    """`weight` applied to `x`, in the dtype of `x`.

    `gain` is that of the norm before it. Multiplying the weight's columns by it is the same as multiplying `x`, and a
    pass over the weight is cheaper than one over the activations.
    """
    return F.linear(x, (weight if gain is None else weight * gain).to(x.dtype))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (arXiv 2002.05202)."""
    return F.silu(gate) * up


def squared_relu(up: Tensor) -> Tensor:
    """relu(up)² (arXiv 2109.08668)."""
    return F.relu(up).square()


def recomputed(function: Callable[..., Any], *given: Any, when: bool = True) -> Any:
    """`function(*given)`; `when` it is true nothing inside is kept, and the backward pass does it again to the bit."""
    if not when:
        return function(*given)
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)


def feed_forward(
    unit: Tensor,
    *,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    gain: Tensor | None = None,
    recompute: bool = False,
    product: Product = linear,
) -> Tensor:
    """down(silu(gate(x)) · up(x)), or down(relu(up(x))²) without a gate; `gain` is that of the norm before it.

    Gate and up are two products: the halves of a joint one are slower to read. `recompute` makes what lies between the
    products again in the backward pass.
    """
    if gate is None:
        inner = recomputed(squared_relu, product(unit, up, gain), when=recompute)
    else:
        inner = recomputed(swiglu, product(unit, gate, gain), product(unit, up, gain), when=recompute)
    return product(inner, down)

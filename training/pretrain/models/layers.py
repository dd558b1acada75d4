"""Functions of which the decoder's MLPs and experts are built: norm, products, activation functions."""

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
    """`unit_rms` written out for CPUs.

    Torch has no fused form there, and its separate operations pass over memory twice as often.
    """

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
    """The type of functions that multiply `x` by a weight like `linear`, such as in fp8."""

    def __call__(self, x: Tensor, weight: Tensor, gain: Tensor | None = None) -> Tensor: ...


def linear(x: Tensor, weight: Tensor, gain: Tensor | None = None) -> Tensor:
    """Multiply `x` by `weight` in the dtype of `x`.

    `gain` is the gain of the norm before it. Multiplying the weight's columns by the gain gives the same as multiplying
    `x`, and a pass over the weight is cheaper than a pass over the activations.
    """
    return F.linear(x, _applied(weight, gain, x.dtype))


def lean_linear(x: Tensor, weight: Tensor, gain: Tensor | None = None) -> Tensor:
    """Multiply as `linear` does, without keeping the weight in the dtype of `x`, or times the gain, until the backward.

    FSDP frees the weights that it gathered after a layer's forward pass, and gathers them again before its backward
    pass. Copies that autograd kept would be a whole model in every process.
    """
    return LeanLinear.apply(x, weight, gain)


class LeanLinear(torch.autograd.Function):
    """The function of `lean_linear`."""

    @staticmethod
    def forward(ctx, x, weight, gain):
        ctx.save_for_backward(x, weight, gain)
        return F.linear(x, _applied(weight, gain, x.dtype))

    @staticmethod
    def backward(ctx, grad):
        x, weight, gain = ctx.saved_tensors
        moved = (grad.flatten(0, -2).t() @ x.flatten(0, -2)).to(weight.dtype)
        to_x = grad @ _applied(weight, gain, x.dtype)
        return (to_x, moved, None) if gain is None else (to_x, moved * gain, (moved * weight).sum(dim=0))


def _applied(weight: Tensor, gain: Tensor | None, dtype: torch.dtype) -> Tensor:
    return (weight if gain is None else weight * gain).to(dtype)


def looked_up(tokens: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of `weight` for the tokens; a frequent token's gradient is summed in fp32, then rounded."""
    return F.embedding(tokens, weight) if weight.dtype == torch.float32 else _LookedUp.apply(tokens, weight)


class _LookedUp(torch.autograd.Function):
    """The function of `looked_up`, for weights in another format than fp32."""

    @staticmethod
    def forward(ctx, tokens, weight):
        ctx.save_for_backward(tokens)
        ctx.rows, ctx.dtype = len(weight), weight.dtype
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx, grad):
        (tokens,) = ctx.saved_tensors
        summed = torch.ops.aten.embedding_dense_backward(grad.float(), tokens, ctx.rows, -1, False)
        return None, summed.to(ctx.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, the SwiGLU activation (arXiv 2002.05202)."""
    return F.silu(gate) * up


def squared_relu(up: Tensor) -> Tensor:
    """Return relu(up)², the squared ReLU activation (arXiv 2109.08668)."""
    return F.relu(up).square()


def recomputed(function: Callable[..., Any], *given: Any, when: bool = True) -> Any:
    """Return `function(*given)`.

    If `when`, keep no intermediate results and recompute them, to the bit, in the backward pass.
    """
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
    """Return down(silu(gate(x)) · up(x)), or down(relu(up(x))²) without a gate.

    `gain` is the gain of the norm before it.

    Gate and up are two products, because the halves of a joint product are slower to read. With `recompute`, the
    backward pass recomputes what lies between the products.
    """
    if gate is None:
        inner = recomputed(squared_relu, product(unit, up, gain), when=recompute)
    else:
        inner = recomputed(swiglu, product(unit, gate, gain), product(unit, up, gain), when=recompute)
    return product(inner, down)


def softcapped(logits: Tensor, cap: float) -> Tensor:
    """Return cap · tanh(logits / cap), which stays within ±cap (arXiv 2408.00118); unchanged logits if `cap` is 0."""
    return cap * torch.tanh(logits / cap) if cap else logits

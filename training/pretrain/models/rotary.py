"""Rotary positions (arXiv 2104.09864), their scaling to longer texts, and the rotation itself."""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch
from torch import Tensor

from training.pretrain.models.shape import RotaryScaling


def rotary_frequencies(
    *, head_width: int, theta: float, scaling: RotaryScaling | None = None, device: torch.device | None = None
) -> tuple[Tensor, float]:
    """Return the rotation of each pair of a head in radians per position, and a factor for cosine and sine.

    The rotations are fp32 `[E/2]`. The factor is 1 except for yarn. Tests compare the result with transformers' for
    each kind.
    """
    scaling = scaling or RotaryScaling()
    theta = scaling.base(theta, head_width=head_width)
    plain = theta ** (-torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width)
    if scaling.kind == "linear":
        return plain / scaling.factor, 1.0
    if scaling.kind == "yarn":
        kept = 1 - _yarn_ramp(scaling, head_width=head_width, theta=theta).to(plain.device)
        return plain / scaling.factor * (1 - kept) + plain * kept, scaling.attention_factor
    if scaling.kind == "llama3":
        # Position of a pair's frequency between the two bounds: 0 (divided by the factor) to 1 (unchanged).
        turns = scaling.original_length * plain / (2 * pi)
        span = scaling.high_frequency_factor - scaling.low_frequency_factor
        kept = ((turns - scaling.low_frequency_factor) / span).clamp(0, 1)
        return plain / scaling.factor * (1 - kept) + plain * kept, 1.0
    if scaling.kind in ("none", "ntk"):
        return plain, 1.0
    raise AssertionError(f"rope_scaling {scaling.kind} has no rotations")


def _yarn_ramp(scaling: RotaryScaling, *, head_width: int, theta: float) -> Tensor:
    """Return 0 for pairs that turn more than `beta_fast` times over the original length, 1 below `beta_slow` turns."""

    def pair_of(turns: float) -> float:
        return head_width * log(scaling.original_length / (turns * 2 * pi)) / (2 * log(theta))

    first = max(floor(pair_of(scaling.beta_fast)), 0)
    last = min(ceil(pair_of(scaling.beta_slow)), head_width - 1)
    width = last - first or 0.001
    return ((torch.arange(head_width // 2, dtype=torch.float32) - first) / width).clamp(0, 1)


def rotary_table(positions: Tensor, frequencies: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the angles at `positions`, times `factor`, each `[*positions.shape, E/2]` in fp32.

    Dimension i is paired with i + E/2, as in transformers; interleaved pairs would be a fixed permutation of these.
    """
    angles = positions.float()[..., None] * frequencies
    return (angles.cos(), angles.sin()) if factor == 1.0 else (angles.cos() * factor, angles.sin() * factor)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair (i, i + E/2) of the last axis of `x` by its angle; tables broadcast against half of `x`."""
    return _Rotation.apply(x, cosine, sine)


class _Rotation(torch.autograd.Function):
    """The rotation of rotary positions, as an autograd function whose gradient is the inverse rotation."""

    @staticmethod
    def forward(ctx, x, cosine, sine):
        ctx.save_for_backward(cosine, sine)
        return _turned(x, cosine, sine)

    @staticmethod
    def backward(ctx, grad):
        cosine, sine = ctx.saved_tensors
        return _turned(grad, cosine, -sine), None, None


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    return (_turned_on_cpu if x.device.type == "cpu" else _turned_by_halves)(x, cosine, sine)


def _turned_by_halves(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    # A compiler for GPUs makes one pass of this.
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _turned_on_cpu(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    # Half a head is too short for vector instructions: only the two copies work on halves, the arithmetic runs over
    # whole sequences.
    swapped = torch.empty_like(x)
    for half, other in zip(swapped.chunk(2, dim=-1), reversed(x.chunk(2, dim=-1)), strict=True):
        half.copy_(other)
    return (x * torch.cat((cosine, cosine), dim=-1)).addcmul_(swapped, torch.cat((-sine, sine), dim=-1))

"""Read the gradient of a weight without importing torch, because recipes import the optimizers' files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def gradient_of(weight: Tensor) -> Tensor:
    """Return the gradient of a weight, which must have one after a backward pass."""
    assert weight.grad is not None, "no backward pass has reached this weight"
    return weight.grad

"""The kind of device for which code is chosen: that of a tensor, or a GPU while memory is measured without content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_CHOSEN: ContextVar[str] = ContextVar("device_kind", default="")


def kind_of(device: torch.device) -> str:
    """Return the kind of device, such as `cpu` or `cuda`, for which code that handles tensors of `device` is chosen."""
    return _CHOSEN.get() or device.type


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Choose code as on a GPU, wherever the tensors are."""
    before = _CHOSEN.set("cuda")
    try:
        yield
    finally:
        _CHOSEN.reset(before)

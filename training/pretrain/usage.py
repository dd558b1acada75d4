"""What a run uses and how it says where it stands."""

from __future__ import annotations

import resource
from collections.abc import Mapping

import torch


def peak_memory_bytes(device: torch.device) -> int:
    """The most that this process has held so far: on a GPU by torch's allocator, else resident (Linux: kilobytes)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def said(numbers: Mapping[str, float]) -> str:
    """Named numbers in one line, four digits each."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())

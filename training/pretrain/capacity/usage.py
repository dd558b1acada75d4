"""Measure the memory that a run uses, and print numbers in one line."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Mapping

import torch

from training.pretrain.capacity.room import machine_memory


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory of this process in bytes: on a GPU by torch's allocator, else the resident size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory_of(device: torch.device) -> tuple[int, str]:
    """Return the memory in bytes that a device's processes share, and whose it is: a GPU's or the machine's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory, "the GPU"
    return machine_memory()


def said(numbers: Mapping[str, float]) -> str:
    """Return named numbers as one line of text, with four significant digits each.

    Numbers of a vector, whose names have a `/`, are left out.
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items() if "/" not in name)


def keep_freed_memory() -> None:
    """Ask glibc to reuse large freed blocks instead of giving them back.

    Activations are allocated and freed in blocks of megabytes. The kernel zeroes every returned page before it is
    used again; keeping the blocks saved 8 % of a step's time. This has no effect with another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    mallopt(mmap_threshold, 32 * 2**20)  # the most that glibc accepts
    mallopt(trim_threshold, 2**31 - 1)

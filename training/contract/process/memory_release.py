"""Give freed memory back to the system at once, where a process allocates and frees the same large blocks all the time.

glibc keeps freed blocks of up to 32 MB for later allocations. The weights that FSDP gathers and frees on a CPU leave
holes of all sizes, which together grew to more than the whole model with its optimizer in each process.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

MMAP_THRESHOLD = -3  # mallopt's parameter; a value of one's own also ends its growth
LARGE_BYTES = 1 << 20


def return_large_blocks(least_bytes: int = LARGE_BYTES) -> None:
    """Let the C library map blocks of so many bytes and more one by one; without effect where it is not glibc."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, least_bytes)

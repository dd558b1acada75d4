"""Processes that live no longer than the one that started them, and who is who among them. Standard library only."""

from __future__ import annotations

import os
import signal
from multiprocessing import parent_process

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, however that ends. Linux; elsewhere nothing happens.

    A worker of a pool ends here when its main process is gone already: its fork server, the parent, may have gone too.
    """
    import ctypes  # what starts nothing does without it

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    except (AttributeError, OSError):
        return
    main = parent_process()
    if main is not None and not main.is_alive():
        os._exit(1)

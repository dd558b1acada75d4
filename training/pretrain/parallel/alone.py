"""Work of the first process for which the others wait longer than a watchdog lets a process stand still.

The work counts as progress while it uses processor time. The others wait outside of any message, because a message has
a time limit of its own, and count the signs of life that the first process writes to the launcher's store.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from training.contract.process.lifetime import SignsOfLife

MAX_INTERVAL = 10.0  # seconds between two signs of life


def launcher_store(seconds: float) -> Any:
    """Return a connection to the launcher's store, on which nothing else waits."""
    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=seconds),
    )


@contextmanager
def first_alone(store: Any, key: str, *, is_first: bool, alive: Callable[[], None], seconds: float) -> Iterator[None]:
    """Context manager in which the first process works alone; for the others its end waits for that process.

    `key` names this work in the `store`, and `alive` is called at each sign of life. `seconds` is the limit within
    which a process must show one.
    """
    key = f"pedigree/alone/{key}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    signs, done, interval = f"{key}/signs", f"{key}/done", min(MAX_INTERVAL, seconds / 4)
    ended = threading.Event()
    if not is_first:
        yield
        seen = 0
        while not store.check([done]):
            if (now := store.add(signs, 0)) != seen:
                seen = now
                alive()
            ended.wait(interval)
        return

    def tell() -> None:
        works = SignsOfLife(lambda: 0, seconds)
        while not ended.wait(interval):
            if works():
                store.add(signs, 1)
                alive()

    teller = threading.Thread(target=tell, name="alone", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
    store.set(done, "1")

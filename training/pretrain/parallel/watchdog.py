"""Detects that a run of several processes hangs, reports which process it waits for, and ends this process.

Every process counts its progress, and one of its threads writes the count to the launcher's store, with a tick of its
own. When a process's count has not changed for too long, its thread reads the counts of the others; the first process
to do so tells the answer to all that ask later, so that a thousand do not read a thousand counts each. A process whose
tick does not change is stopped, swapped out or gone with its machine; a process that ticks but has counted less than
the others hangs in its own code. The thread ends the process at once, because the main thread waits for a message that
may never come; the launcher then ends the other processes. Before that it writes what torch's flight recorder knows:
the last messages of the process, with their group, number, sizes and state.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from training.contract.running.attempt import attempt_name

log = logging.getLogger(__name__)

EXIT_CODE = 1
MAX_INTERVAL = 10.0  # seconds between two ticks
ASKS, ANSWER = "pedigree/asks", "pedigree/answer"  # keys in the store
MESSAGES_KEPT = "2000"  # by each process, in memory


class Watchdog:
    """Calls `end` with the reason if this process makes no progress for `seconds`.

    The time starts with the first `count`. `sleep` waits for that many seconds while the others write a new tick.
    """

    def __init__(
        self,
        store: Any,
        *,
        rank: int,
        size: int,
        seconds: float,
        end: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._rank, self._size, self._seconds = store, rank, size, seconds
        self._interval = min(MAX_INTERVAL, seconds / 4)
        self._end, self._sleep = end, sleep
        self._count = self._tick = 0
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def count(self) -> None:
        """Record a step of progress, which the other processes can see."""
        self._count += 1

    def start(self) -> None:
        """Start the thread that watches for progress."""
        self._tell()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread that watches for progress."""
        self._finished.set()
        self._thread.join()

    def _watch(self) -> None:
        seen, since = self._count, time.monotonic()
        while not self._finished.wait(self._interval):
            try:
                self._tell()
                if self._count != seen:
                    seen, since = self._count, time.monotonic()
                elif time.monotonic() - since > self._seconds:
                    self._end(f"no progress for {time.monotonic() - since:.0f} s: {self._answer()}")
                    return
            except dist.DistError as error:
                self._end(f"the launcher's store does not answer: {error}")
                return

    def _tell(self) -> None:
        self._tick += 1
        self._store.set(_key(self._rank), f"{self._count} {self._tick} {socket.gethostname()} {os.getpid()}")

    def _answer(self) -> str:
        """Return a sentence that names the processes for which the run is waiting, asked by one process for all.

        If that process gives no answer, being stopped itself, this one asks.
        """
        if self._store.compare_set(ASKS, "", str(self._rank)).decode() != str(self._rank):
            for _ in range(4):  # twice as long as an answer takes
                self._sleep(self._interval)
                self._tell()
                if self._store.check([ANSWER]):
                    return self._store.get(ANSWER).decode()
        said = self._whom()
        self._store.set(ANSWER, said)
        return said

    def _whom(self) -> str:
        """Return a sentence that names the processes for which the run is waiting, by the ticks of all."""
        before = self._heard()
        # After two intervals every live process has written a new tick.
        for _ in range(2):
            self._sleep(self._interval)
            self._tell()
        now = self._heard()
        silent = [rank for rank in range(self._size) if rank not in now or now[rank] == before.get(rank)]
        if silent:
            return "; ".join(f"process {self._named(rank, now)} does not answer" for rank in silent)
        counts = {rank: int(now[rank][0]) for rank in now}
        behind = [rank for rank in counts if counts[rank] < max(counts.values())]
        if behind:
            return "; ".join(f"process {self._named(rank, now)} is behind, and waited for" for rank in behind)
        return f"all {self._size} processes are at the same point and answer"

    def _named(self, rank: int, heard: dict[int, list[str]]) -> str:
        where = f" (host {heard[rank][2]}, pid {heard[rank][3]}, at {heard[rank][0]})" if rank in heard else ""
        return f"{rank} of {self._size}{where}"

    def _heard(self) -> dict[int, list[str]]:
        """Return count, tick, host and process id that each process last wrote, except processes that never wrote."""
        ranks = range(self._size)
        if not self._store.check([_key(rank) for rank in ranks]):
            ranks = [rank for rank in ranks if self._store.check([_key(rank)])]
        told = self._store.multi_get([_key(rank) for rank in ranks])
        return {rank: one.decode().split(" ") for rank, one in zip(ranks, told, strict=True)}


def _key(rank: int) -> str:
    return f"pedigree/alive/{rank}"


def remember_messages() -> None:
    """Let torch's flight recorder keep the last messages of the process groups that are made from now on."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", MESSAGES_KEPT)


def write_messages(folder: Path, rank: int) -> Path:
    """Write this process's last messages into `folder`, as the JSON of torch's flight recorder; return the file.

    NCCL's groups have a recorder of their own where torch is built with NCCL.
    """
    dump = getattr(c10d, "_dump_fr_trace_json")  # noqa: B009  not in torch's type stubs
    if dist.is_initialized() and dist.get_backend() == "nccl":
        dump = getattr(c10d, "_dump_nccl_trace_json", dump)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{attempt_name()}.rank-{rank}.json"
    path.write_bytes(dump())
    return path


def _end(why: str, folder: Path, rank: int) -> None:
    try:
        why = f"{why}. {write_messages(folder, rank)} has its last messages"
    except Exception as error:  # whatever happens, a process that hangs must end
        why = f"{why}. Its last messages could not be written: {error}"
    log.error("%s; this process ends", why)
    logging.shutdown()
    os._exit(EXIT_CODE)


@contextmanager
def watched(*, rank: int, size: int, seconds: float, messages: Path) -> Iterator[Callable[[], None]]:
    """Context manager that gives a function to call at every sign of progress.

    If there is none for `seconds`, the processes write their last messages into the folder `messages` and end. A
    process without peers is not watched.
    """
    if size == 1:
        yield lambda: None
        return
    # A connection of its own, because a waiting process group blocks the group's connection.
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=seconds),
    )
    watchdog = Watchdog(store, rank=rank, size=size, seconds=seconds, end=lambda why: _end(why, messages, rank))
    watchdog.start()
    try:
        yield watchdog.count
    finally:
        watchdog.stop()

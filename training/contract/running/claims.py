"""Claims, by which the tasks of one fan-out take its ranks one after the other, each the next that nobody has.

A claim is a note (`training.contract.files.notes`) that is created only if there is none. Each task writes a beat into
a note of its own while it works. If a task ended without finishing a rank, another one takes the rank over by the claim
with the next number.

A claim only saves work. What is made is told by the ranks' completion marks alone: if two tasks make a rank, because
one was taken for dead, both write the same bytes. Standard library only.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from training.contract.errors import DataError
from training.contract.files.notes import Notes
from training.contract.files.writing import has_ended, this_process

DEAD_SECONDS = 60.0  # without a beat, by the watcher's own clock; NFS may show a change as late as that
MOST_CLAIMS = 3  # of one rank, by different tasks: the rank itself may be what ends them
_WORKS, _FAILED = "works", "ended"  # of equal length, because a beat is written in place
_CLAIM = re.compile(r"(\d+)\.(\d+)\.claim")


class Claims:
    """The claims of one task on ranks; a context manager, which beats while it is open.

    `ranks` are in the order in which the task wants them, and `made` returns those that are finished. `name` is the
    task's own; `restarted` begins the names of its earlier attempts, whose ranks it may take at once. `goes_on` tells
    whether the task's work shows signs of life; without them it does not beat.
    """

    def __init__(
        self,
        notes: Notes,
        ranks: Sequence[int],
        made: Callable[[], set[int]],
        *,
        name: str,
        restarted: str | None = None,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self._notes, self._left, self._made = notes, list(ranks), made
        self._name, self._goes_on = name, goes_on
        self._dead = set[str]()
        self._restarted = restarted
        self._owners = dict[tuple[int, int], str]()
        self._beats, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._beat_on, daemon=True)

    def __enter__(self) -> Claims:
        self._beat(_WORKS)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(OSError):
            self._beat(_WORKS if kind is None else _FAILED)

    def each_free(self, among: Sequence[int] | None = None) -> Iterator[int]:
        """Claim and yield one rank after the other, until none (of those `among`) is free."""
        chosen = None if among is None else set(among)
        claims = self._claims()
        for rank in [rank for rank in self._left if chosen is None or rank in chosen]:
            number = self._next_number(rank, claims)
            if number is None or rank not in self._left:
                continue
            if self._claim(rank, number):
                self._left.remove(rank)
                yield rank
            else:
                claims = self._claims()  # others are at work here: look once what they have

    def wait_for_news(self) -> bool:
        """Whether a rank that other tasks had claimed is free now.

        Waits until each task that has claimed an unfinished rank is known to live, to have failed or to be dead. A task
        that fails leaves its rank to the next attempt of the stage, because the rank would fail again.
        """
        first = dict[str, tuple[str, float]]()
        while True:
            claims = self._claims()
            if any(self._next_number(rank, claims) is not None for rank in self._left):
                return True
            owners = {self._owner(rank, claims[rank]) for rank in self._left if claims[rank] < MOST_CLAIMS - 1}
            waits = False
            for owner in owners:
                beat = self._notes.read(owner) if owner else ""
                state, _, rest = beat.partition(" ")
                seen, since = first.setdefault(owner, (beat, time.monotonic()))
                if state == _FAILED or seen != beat:
                    continue
                waits = True
                if has_ended(rest.partition(" ")[0]) or time.monotonic() - since > DEAD_SECONDS:
                    self._dead.add(owner)
            if not waits:
                return False
            time.sleep(self._notes.look_seconds)

    def _claims(self) -> dict[int, int]:
        """Return the number of the last claim of each claimed rank, and forget the ranks that are made."""
        last: dict[int, int] = {}
        for name in self._notes.names():
            if named := _CLAIM.fullmatch(name):
                last[int(named[1])] = max(last.get(int(named[1]), 0), int(named[2]))
        made = self._made()  # after the claims: what is made meanwhile is not taken for abandoned
        self._left = [rank for rank in self._left if rank not in made]
        return last

    def _next_number(self, rank: int, claims: dict[int, int]) -> int | None:
        """Return the number of the claim with which this task may take a rank; None if it may not."""
        if rank not in claims:
            return 0
        last = claims[rank]
        if self._restarted is None and not self._dead:
            return None
        owner = self._owner(rank, last)
        if self._restarted is not None and owner.startswith(self._restarted):
            return last + 1
        return last + 1 if last < MOST_CLAIMS - 1 and owner in self._dead else None

    def _claim(self, rank: int, number: int) -> bool:
        return self._notes.create(_name_of(rank, number), self._file_of(self._name))

    def _owner(self, rank: int, number: int) -> str:
        """Return the name of the beat of the task that has a claim; "" if it ended before it wrote its name."""
        if not self._owners.get((rank, number)):
            self._owners[rank, number] = self._notes.read(_name_of(rank, number))
        return self._owners[rank, number]

    # Beats

    @staticmethod
    def _file_of(name: str) -> str:
        return re.sub(r"[^A-Za-z0-9_.-]", "_", name) + ".beat"

    def _beat(self, state: str) -> None:
        self._notes.write(self._file_of(self._name), f"{state} {this_process()} {self._beats:012d}\n")
        self._beats += 1

    def _beat_on(self) -> None:
        while not self._stop.wait(self._notes.write_seconds):
            if self._goes_on():
                with suppress(OSError, DataError):  # the next beat may come through
                    self._beat(_WORKS)


def _name_of(rank: int, number: int) -> str:
    return f"{rank:05d}.{number}.claim"

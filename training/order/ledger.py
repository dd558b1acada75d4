"""The ledger: the training steps that a run skipped, with the reasons. Standard library only.

A run is defined by its plan and its ledger: step n trains on batch n of the plan, unless an entry of the ledger
contains n. So plan and ledger together give every batch that went into the weights. A run that was rolled back ends
with the same weights as a run that never trained on the skipped steps. Entries are only added, never removed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.contract.files.writing import Unsealed, read_sealed, write_json, write_sealed
from training.contract.records import read_record, write_record

LEDGER_FILE = "ledger.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEntry:
    """A range of steps that were not trained on, and the measurements that led to it.

    `loss` and `gradient_norm` were measured at the step `seen_at`, and are None if not finite. `onset` is the first
    of the consecutive bad steps that end at `seen_at`. The deviations are in robust standard deviations; they are
    None if there were no earlier steps to compare with.
    """

    first: int
    last: int  # included
    reason: Literal["not_finite", "spike", "later"]  # later: than the step after which the model was kept
    onset: int
    seen_at: int
    loss: float | None
    gradient_norm: float | None
    loss_deviation: float | None = None
    norm_deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """The skipped steps of a run, as entries in the order in which they were added."""

    entries: tuple[LedgerEntry, ...] = ()

    def __contains__(self, step: int) -> bool:
        return bool(self.reasons(step))

    def reasons(self, step: int) -> set[str]:
        """Return the reasons why a step is skipped; empty if it is not skipped."""
        return {entry.reason for entry in self.entries if entry.first <= step <= entry.last}

    def with_entry(self, entry: LedgerEntry) -> Ledger:
        """Return a copy of this ledger with one more entry."""
        return Ledger((*self.entries, entry))

    @property
    def steps(self) -> list[int]:
        """Every skipped step, once, in ascending order."""
        return sorted({step for entry in self.entries for step in range(entry.first, entry.last + 1)})

    @property
    def rollbacks(self) -> int:
        """The number of times that the run was rolled back because of a spike."""
        return sum(entry.reason == "spike" for entry in self.entries)

    def knows(self, earlier: Ledger, *, step: int) -> bool:
        """Whether a checkpoint that was taken before `step` with the `earlier` ledger is valid for this ledger.

        It is valid if all entries that were added since then begin at `step` or later.
        """
        own = self.entries[: len(earlier.entries)]
        return own == earlier.entries and all(entry.first >= step for entry in self.entries[len(own) :])


def read_entries(data: object) -> Ledger:
    """Return the ledger from the plain data that `write_record` makes of its entries."""
    if not isinstance(data, list):
        raise ValueError(f"a ledger is a list, not {type(data).__name__}")
    return Ledger(tuple(read_record(LedgerEntry, entry, where=LEDGER_FILE) for entry in data))


def read_ledger(folder: Path) -> Ledger:
    """Return the ledger in `folder`, empty if there is none. Raise Unsealed if the file was changed or is damaged."""
    path = folder / LEDGER_FILE
    try:
        return read_entries(_entries(path))
    except FileNotFoundError:
        return Ledger()
    except ValueError as error:
        raise Unsealed(f"{LEDGER_FILE} cannot be read ({error})") from None


def _entries(path: Path) -> object:
    if path.read_bytes()[:1] == b"[":  # a file of an artifact, whose record has its checksum
        return json.loads(path.read_text("utf-8"))
    return read_sealed(path).get("entries")


def write_ledger(folder: Path, ledger: Ledger) -> None:
    """Write the ledger as a file of an artifact into `folder`, whole or not at all."""
    write_json(folder / LEDGER_FILE, write_record(ledger.entries))


def keep_ledger(folder: Path, ledger: Ledger) -> None:
    """Write the ledger beside checkpoints into `folder`, with its own checksum, whole or not at all."""
    write_sealed(folder / LEDGER_FILE, {"entries": write_record(ledger.entries)})

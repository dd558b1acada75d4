"""What a run passed over. Standard library only.

A run is defined by its plan and its ledger: step n trains on batch n of the plan, or is passed over when an entry holds
n. So whoever has both knows every batch that went into the weights, and a run that went back leaves the same weights as
one that never trained on those steps. The ledger is only ever added to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.files import Unsealed, read_sealed, write_json, write_sealed
from training.records import read_record, write_record

LEDGER_FILE = "ledger.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A range of steps that were not trained on.

    Loss and norm are those of the step `seen_at`, None where not finite; `onset` is the first of the wrong steps in a
    row up to that. The two deviations are in robust standard deviations, None where nothing was compared.
    """

    first: int
    last: int  # included
    reason: Literal["not_finite", "spike"]
    onset: int
    seen_at: int
    loss: float | None
    gradient_norm: float | None
    loss_deviation: float | None = None
    norm_deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """The entries in the order in which they were made."""

    entries: tuple[Entry, ...] = ()

    def __contains__(self, step: int) -> bool:
        return bool(self.reasons(step))

    def reasons(self, step: int) -> set[str]:
        """Why a step is passed over; empty when it is not."""
        return {entry.reason for entry in self.entries if entry.first <= step <= entry.last}

    def with_entry(self, entry: Entry) -> Ledger:
        """This ledger and one entry more."""
        return Ledger((*self.entries, entry))

    @property
    def steps(self) -> list[int]:
        """Every step that is passed over, once, rising."""
        return sorted({step for entry in self.entries for step in range(entry.first, entry.last + 1)})

    @property
    def rollbacks(self) -> int:
        """How often the run went back."""
        return sum(entry.reason == "spike" for entry in self.entries)

    def knows(self, earlier: Ledger, *, step: int) -> bool:
        """Whether a state taken before `step` under the `earlier` ledger is one that this ledger's run goes through.

        It is when everything that was entered since lies at or after `step`.
        """
        own = self.entries[: len(earlier.entries)]
        return own == earlier.entries and all(entry.first >= step for entry in self.entries[len(own) :])


def read_entries(data: object) -> Ledger:
    """The ledger that `write_record` of its entries gave."""
    if not isinstance(data, list):
        raise ValueError(f"a ledger is a list, not {type(data).__name__}")
    return Ledger(tuple(read_record(Entry, entry, where=LEDGER_FILE) for entry in data))


def read_ledger(folder: Path) -> Ledger:
    """The ledger in `folder`; empty when there is none. Unsealed when it is not what was written."""
    path = folder / LEDGER_FILE
    try:
        return read_entries(_entries(path))
    except FileNotFoundError:
        return Ledger()
    except ValueError as error:
        raise Unsealed(f"{LEDGER_FILE} cannot be read ({error})") from None


def _entries(path: Path) -> object:
    if path.read_bytes()[:1] == b"[":  # an artifact's, whose record has its checksum, or by an earlier edition
        return json.loads(path.read_text("utf-8"))
    return read_sealed(path).get("entries")


def write_ledger(folder: Path, ledger: Ledger) -> None:
    """Put the ledger into an artifact's `folder`, whole or not at all."""
    write_json(folder / LEDGER_FILE, write_record(ledger.entries))


def keep_ledger(folder: Path, ledger: Ledger) -> None:
    """Put the ledger beside checkpoints, with a checksum of its own, whole or not at all."""
    write_sealed(folder / LEDGER_FILE, {"entries": write_record(ledger.entries)})

"""The ledger of a model that is not the last one of its training. Standard library only."""

from __future__ import annotations

from training.order.ledger import Ledger, LedgerEntry


def ledger_before(ledger: Ledger, step: int, *, steps: int) -> Ledger:
    """Return the ledger of the model as it was before `step` of a training of so many steps: the rest is later.

    It is the same ledger if no step is later.
    """
    unseen = {"onset": step, "seen_at": step, "loss": None, "gradient_norm": None}
    return (
        ledger.with_entry(LedgerEntry(first=step, last=steps - 1, reason="later", **unseen)) if step < steps else ledger
    )

"""The recipe section `withdrawals`: what a takedown does beyond the pages that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class WithdrawalRecipe:
    """What follows for near-duplicates of withdrawn pages. The section is part of no fingerprint.

    `cluster`: pages that were dropped as duplicates of a withdrawn page are withdrawn too. `twin`: the next one takes
    its place.
    """

    duplicates: Literal["cluster", "twin"] = "cluster"

"""The recipe section `withdrawals`: what a takedown does beyond the pages that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class WithdrawalRecipe:
    """What follows from a withdrawal beyond its pages. The section is part of no fingerprint.

    `cluster`: pages that were dropped as duplicates of a withdrawn page are withdrawn too. `twin`: the next one takes
    its place.

    `models` is about the vocabulary and the quality models, which learned from the corpus. `keep`: those made before a
    withdrawal are used on, although they learned from withdrawn pages. `retrain`: they are made again without them.
    """

    duplicates: Literal["cluster", "twin"] = "cluster"
    models: Literal["keep", "retrain"] = "keep"

"""The recipe section `withdrawals`: what a takedown does beyond the pages that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.contract.records import Uri


@dataclass(frozen=True, kw_only=True, slots=True)
class WithdrawalRecipe:
    """Settings of takedowns: what changes beside the withdrawn pages. They are part of no fingerprint but the `rows`.

    `duplicates`: with `cluster`, all duplicates of a withdrawn page are withdrawn too, those that were dropped and the
    one that was kept; with `twin`, they stay, and the first of them takes the page's place.

    `models`: with `keep`, the vocabulary and the quality models that learned from withdrawn pages stay in use; with
    `retrain`, they are made again without these pages.

    `rows` are lists of rows of instructions, preferences and prompts that are left out: an id, or `SOURCE#` for all
    rows of a source, one a line; a reason may follow after a tab (training/posttrain/rows/withdrawn.py).
    """

    duplicates: Literal["cluster", "twin"] = "cluster"
    models: Literal["keep", "retrain"] = "keep"
    rows: tuple[Uri, ...] = ()

"""The recipe section `withdrawals`: what a takedown does beyond the pages that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from training.records import Uri

if TYPE_CHECKING:
    from training.recipe import Recipe

SECTION = "withdrawals"


@dataclass(frozen=True, kw_only=True, slots=True)
class WithdrawalRecipe:
    """Settings of takedowns: what changes beside the withdrawn pages. They are part of no fingerprint but the `rows`.

    `duplicates`: with `cluster`, all duplicates of a withdrawn page are withdrawn too, those that were dropped and the
    one that was kept; with `twin`, they stay, and the first of them takes the page's place.

    `models`: with `keep`, the vocabulary and the quality models that learned from withdrawn pages stay in use; with
    `retrain`, they are made again without these pages.

    `rows` are lists of rows of instructions, preferences and prompts that are left out: an id, or `SOURCE#` for all
    rows of a source, one a line; a reason may follow after a tab (training/posttrain/withdrawn.py).
    """

    duplicates: Literal["cluster", "twin"] = "cluster"
    models: Literal["keep", "retrain"] = "keep"
    rows: tuple[Uri, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class WithdrawnRows:
    """The lists of withdrawn rows: the part of the section that decides what rows there are."""

    rows: tuple[Uri, ...]


def withdrawn_of(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the lists; empty without a list, so that no fingerprint has an empty one."""
    return {SECTION: WithdrawnRows(rows=recipe.withdrawals.rows)} if recipe.withdrawals.rows else {}

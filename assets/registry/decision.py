"""The cells behind a recipe's promotion decision, and the names of the assets used in promotion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.contract.scopes import last_model

if TYPE_CHECKING:
    from assets.state.cell import Cell, Comparison

DECISION, SCORES, REPORT, CARD = "promoted_model", "model_scores", "contamination_report", "model_card"


def model_of(comparison: Comparison) -> Cell:
    """Return the cell of the recipe's last model, which is the one that is registered and promoted."""
    return comparison.cells[last_model(comparison.recipe), comparison.recipe.name]


def lineage_of(comparison: Comparison) -> list[Cell]:
    """Return every cell that the recipe's promotion decision is made from, in the chain's order.

    The decision may be made from the cells directly or indirectly.
    """
    wanted: set[tuple[str, str]] = set()
    waiting = [(DECISION, comparison.recipe.name)]
    while waiting:
        for key in comparison.cells[waiting.pop()].inputs:
            if key not in wanted:
                wanted.add(key)
                waiting.append(key)
    return [cell for key, cell in comparison.cells.items() if key in wanted]

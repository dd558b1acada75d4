"""The HTML report of a recipe, written again beside the promotion decision, so that it shows the promotion.

Like the report beside the model card, the page is part of no digest. It shows the samples of documents that the stage
of the card chose, so that no document is read here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from assets.registry.decision import CARD, DECISION
from assets.registry.standing import Standing
from assets.state.cell import Comparison
from resources.tracking.registry import Registry
from training.contract.files.writing import write_text


def told(standing: Standing, registry: Registry) -> dict[str, Any]:
    """Return what the registry adds to a report: the standing of the model, and every move of the alias `champion`."""
    moves = [move.as_json() for move in registry.history()]
    return {**standing.as_json(), "promoted": standing.promoted, "moves": moves}


def report_page(
    comparison: Comparison, registered: Mapping[str, Any], *, shown: Sequence[Mapping[str, Any]] | None = None
) -> str:
    """Return the page about all artifacts of a recipe, as HTML.

    `shown` has the samples of documents, in the form that `evaluation.report.run_page.render_report` takes.
    """
    from evaluation.report.run_page import render_report

    made = [cell.artifact for cell in comparison.cells.values() if cell.artifact is not None]
    return render_report([(item.path, item.record) for item in made], registered, shown=shown)


def show_decision(comparison: Comparison, standing: Standing, registry: Registry) -> None:
    """Make the recipe's report again, and write it beside the promotion decision.

    Nothing is written if there is no decision yet, or if the model card chose no records for a report.
    """
    from evaluation.hub.card import REPORT_PAGE, SHOWN_RECORDS

    decision, card = (comparison.cells[asset, comparison.recipe.name].artifact for asset in (DECISION, CARD))
    if decision is None or card is None or not (card.path / SHOWN_RECORDS).exists():
        return
    shown = json.loads((card.path / SHOWN_RECORDS).read_text("utf-8"))
    write_text(decision.path / REPORT_PAGE, report_page(comparison, told(standing, registry), shown=shown))

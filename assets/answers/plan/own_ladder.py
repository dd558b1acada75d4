"""What a recipe knows for a budget: the fit of its ladder, and the tokens of its corpus."""

from __future__ import annotations

import json

from assets.answers.plan.budget import Fit, own_fit
from assets.answers.plan.given import held_tokens
from assets.state.cell import Comparison
from evaluation.report.scaling import RESULT_FILE


def known_of(comparison: Comparison) -> tuple[Fit | None, float | None]:
    """Return the fit of the recipe's ladder if it is made and no gate refused it, and the recipe's tokens.

    Tokens are those of the shards; before they are made, about those of the documents. None: not known.
    """
    own, recipe = None, comparison.recipe
    shards = [cell.artifact for cell in comparison.cells.values() if cell.asset == "token_shards"]
    for cell in comparison.cells.values():
        if cell.asset == "scaling_fit" and cell.artifact is not None and not cell.artifact.failed_gates:
            result = json.loads(cell.artifact.file(RESULT_FILE).read_text("utf-8"))
            own = own_fit(result, resamplings=recipe.ladder.bootstrap, seed=recipe.ladder.seed)
    if shards and all(shards):
        return own, sum(one.record["metrics"]["tokens"] for one in shards if one)
    return own, held_tokens(recipe)

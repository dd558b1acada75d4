"""Guards: assets that must have passed their gates before a stage starts, and on which nothing that it makes depends.

The job and the artifact's record hold a guard's digest, but no fingerprint does. So a new version of a guard does not
make existing artifacts outdated. A stage may read a guard only for what it reports while it works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.contract.stage import Input

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe


def _is_judged_before(recipe: Recipe) -> bool:
    return recipe.evaluation.contamination == "before"


# Every training waits for the verdict on the text that the recipe's models are trained on, and for suites that score.
CLEAN_DATA = (Input(asset="data_contamination", when=_is_judged_before), Input(asset="checked_suites"))

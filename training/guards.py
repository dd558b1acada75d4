"""Guards: assets that a stage waits for and does not read.

A guard must be made, and a gate that it failed refuses the stage. The job and the record hold the guard's digest, but
no fingerprint does. So a new guard makes nothing outdated that was made before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.stage import Input

if TYPE_CHECKING:
    from training.recipe import Recipe


def _is_judged_before(recipe: Recipe) -> bool:
    return recipe.evaluation.contamination == "before"


# Every training waits for the verdict on the text that the recipe's models are trained on.
CLEAN_DATA = (Input(asset="data_contamination", when=_is_judged_before),)

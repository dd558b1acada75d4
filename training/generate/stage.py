"""Stage `synthesize`: text written by a model of the recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

SYNTHESIZE = Stage(
    name="synthesize",
    version="14",
    module="training.generate.synthesize",
    libraries=("tokenizers", "torch", "transformers"),
    kinds=("json",),
    gates=("counts_balance",),
    in_ranks=True,
    by_a_model=True,
)


def _is_written_by(asset: str) -> Callable[[Recipe], bool]:
    """Whether a recipe's synthetic text is written by `asset`."""
    return lambda recipe: recipe.synthesis.generator == asset


ASSETS = (
    Asset(
        name="synthetic_text",
        stage=SYNTHESIZE,
        description=(
            "Text written by a model of the recipe. Every row has its generator, prompt, seed and sampling settings; "
            "another recipe can name this text as a snapshot."
        ),
        group="synthesis",
        scope="section",
        sections=("synthesis.prompts",),
        settings=sections("synthesis"),
        inputs=tuple(
            Input(asset=asset, when=_is_written_by(asset))
            for asset in ("base_model", "long_context_model", "sft_model", "aligned_model")
        ),
    ),
)

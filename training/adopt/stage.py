"""The stage `adopt` and its asset, a model of somebody else with which the recipe begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from training.contract.model_files import model_digest
from training.contract.stage import Asset, Stage

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

ADOPT = Stage(
    name="adopt",
    version="14",
    module="training.adopt.adopt",
    parts=(("training.pretrain.models.families", "all"),),
    libraries=("safetensors", "tokenizers", "torch", "transformers"),
    kinds=("huggingface", "safetensors"),
    gates=("import_equals_transformers",),
    by_a_model=True,
    locations=(("adopted", "path"),),
)


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the recipe's statements about the adopted model, and the special tokens.

    The model is identified by its digest, not by its path.
    """
    from training.data.tokens.adopted_folder import folder_of

    del part
    assert recipe.adopt.model is not None  # else the asset is not part of the recipe
    folder = folder_of(recipe.adopt.model)
    return {
        "adopt": replace(recipe.adopt, model=None),
        "adopted": {"digest": model_digest(folder), "path": str(folder)},
        "tokenizer": {"special_tokens": recipe.tokenizer.special_tokens},
    }


ASSETS = (
    Asset(
        name="adopted_model",
        stage=ADOPT,
        description="A pretrained model from elsewhere, with its tokenizer and a record of what is not known about it.",
        group="adoption",
        scope="section",
        sections=("adopt.model",),
        settings=_settings,
    ),
)

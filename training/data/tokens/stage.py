"""Stages `tokenizer`, which trains a vocabulary, and `tokenize`, which makes shards of token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

TOKENIZER = Stage(
    name="tokenizer",
    version="11",
    module="training.data.tokens.tokenizer",
    libraries=("tokenizers",),
    kinds=("tokenizers", "huggingface"),
    gates=("counts_balance", "all_bytes", "round_trip", "fertility"),
    in_ranks=True,
    phases=("sample",),
    reads=("decontaminated_documents",),
    locations=(("adopted", "path"),),
)
TOKENIZE = Stage(
    name="tokenize",
    version="11",
    module="training.data.tokens.tokenize",
    libraries=("tokenizers",),
    kinds=("tokenizers", "numpy"),
    gates=("counts_balance", "shards_decode"),
    in_ranks=True,
    by_file=("decontaminated_documents", "tokenizer"),
    reads=("decontaminated_documents",),
)


def _tokenizer(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the section `tokenizer`, and the recipe's statements about a tokenizer that it adopts without a model.

    That tokenizer is identified by the digest of its files, not by its path.
    """
    settings = sections("tokenizer")(recipe, part)
    if not recipe.adopt.tokenizer:
        return settings
    from training.data.tokens.adopted_folder import (
        folder_of,
        tokenizer_digest,
    )  # with parquet, which declarations should save

    folder = folder_of(recipe.adopt.tokenizer, field="tokenizer")
    stated = {name: getattr(recipe.adopt, name) for name in ("name", "revision", "licence")}
    return settings | {"adopted": {**stated, "digest": tokenizer_digest(folder), "path": str(folder)}}


ASSETS = (
    Asset(
        name="tokenizer",
        stage=TOKENIZER,
        description="The byte-level vocabulary, trained or adopted, and how many bytes of text a token stands for.",
        group="training_data",
        scope="section",
        sections=("snapshots",),
        settings=_tokenizer,
        inputs=(Input(asset="decontaminated_documents", which="tokenizer"), Input(asset="adopted_model")),
    ),
    Asset(
        name="token_shards",
        stage=TOKENIZE,
        description=(
            "Memory-mapped files with the token ids of one snapshot. A table beside each file maps every token to its "
            "document."
        ),
        group="training_data",
        scope="snapshot",
        settings=sections("shards"),
        inputs=(Input(asset="decontaminated_documents"), Input(asset="tokenizer")),
    ),
)

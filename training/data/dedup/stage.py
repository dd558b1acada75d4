"""Stages `sign`, which makes the signatures that documents are compared by, and `dedup`, which removes duplicates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections, with_data

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

SIGN = Stage(
    name="sign",
    version="11",
    module="training.data.dedup.sign",
    libraries=("xxhash", "idna"),
    kinds=("numpy",),
    gates=("counts_balance",),
    in_ranks=True,
    by_file=("filtered_documents",),
    reads=("filtered_documents",),
)
DEDUP = Stage(
    name="dedup",
    version="12",
    module="training.data.dedup.dedup",
    libraries=("xxhash",),
    kinds=("numpy", "parquet"),
    gates=("counts_balance", "survival"),
    in_ranks=True,
    phases=("keys", "candidates", "texts", "verify", "choose", "cuts", "write"),
    reads=("filtered_documents", "document_signatures"),
    reads_last=True,
)


def _sign_settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the section `dedup` without the choice of survivors, on which signatures do not depend."""
    del part
    return with_data(recipe, {"dedup": replace(recipe.dedup, survivor="first", parts={})})


ASSETS = (
    Asset(
        name="document_signatures",
        stage=SIGN,
        description=(
            "MinHash signatures (hashes of word n-grams) of one snapshot's filtered documents. The documents of later "
            "snapshots are compared with these signatures, not with the texts."
        ),
        group="corpus",
        scope="snapshot",
        settings=_sign_settings,
        inputs=(Input(asset="filtered_documents"),),
    ),
    Asset(
        name="deduplicated_documents",
        stage=DEDUP,
        description=(
            "The documents that are left without exact copies and verified near-duplicates of earlier documents, in "
            "this or an earlier snapshot. Each removed document is kept with the id of the document that it repeats."
        ),
        group="corpus",
        scope="snapshot",
        settings=sections("dedup"),
        inputs=(
            Input(asset="filtered_documents", which="earlier"),
            Input(asset="document_signatures", which="earlier"),
        ),
    ),
)

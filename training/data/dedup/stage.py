"""Stages `sign`, which makes the signatures that documents are compared by, and `dedup`, which removes duplicates."""

from __future__ import annotations

from training.data.sections import sections
from training.stage import Asset, Input, Stage

SIGN = Stage(
    name="sign",
    version="2",
    module="training.data.dedup.sign",
    libraries=("xxhash",),
    kinds=("numpy",),
    gates=("counts_balance",),
    in_ranks=True,
    reads=("filtered_documents",),
)
DEDUP = Stage(
    name="dedup",
    version="2",
    module="training.data.dedup.dedup",
    libraries=("xxhash",),
    kinds=("numpy", "parquet"),
    gates=("counts_balance", "survival"),
    reads=("filtered_documents", "document_signatures"),
    reads_last=True,
)

ASSETS = (
    Asset(
        name="document_signatures",
        stage=SIGN,
        description=(
            "MinHash signatures of one snapshot's filtered documents, so that later snapshots need not read its text."
        ),
        group="corpus",
        scope="snapshot",
        settings=sections("dedup"),
        inputs=(Input(asset="filtered_documents"),),
    ),
    Asset(
        name="deduplicated_documents",
        stage=DEDUP,
        description=(
            "Documents that are no exact copy and no verified near-duplicate of an earlier document, in this or an "
            "earlier snapshot. Each removed document is kept with the id of the document that it repeats."
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

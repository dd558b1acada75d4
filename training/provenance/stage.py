"""The stage `provenance` and its asset: what became of every page of a snapshot, and where it is."""

from __future__ import annotations

from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections

_CORPUS = (
    "extracted_documents",
    "filtered_documents",
    "deduplicated_documents",
    "decontaminated_documents",
    "token_shards",
)
PROVENANCE = Stage(
    name="provenance",
    version="9",
    module="training.provenance.build",
    libraries=("xxhash", "idna"),
    kinds=("numpy",),
    gates=("counts_balance",),
    in_ranks=True,
    by_file=_CORPUS,
    reads=("extracted_documents",),
)

ASSETS = (
    Asset(
        name="provenance_index",
        stage=PROVENANCE,
        description=(
            "An index of every page of one snapshot that says what became of it: kept in a shard, dropped or"
            " quarantined, by which stage and why. `pedigree trace` reads it. No training waits for it."
        ),
        group="training_data",
        scope="snapshot",
        settings=sections(),
        inputs=tuple(Input(asset=name) for name in _CORPUS),
    ),
)

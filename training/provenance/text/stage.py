"""Stage `index_text`: sorts the tokens of each shard, so that the places of any text can be looked up."""

from __future__ import annotations

from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections

INDEX_TEXT = Stage(
    name="index_text",
    version="8",
    module="training.provenance.text.build",
    kinds=("numpy",),
    gates=("suffixes_sorted",),
    in_ranks=True,
    by_file=("token_shards",),
)

ASSETS = (
    Asset(
        name="text_index",
        stage=INDEX_TEXT,
        description=(
            "A suffix array for each token shard of a snapshot. `pedigree trace --text` uses it to find where a "
            "text occurs in the training data, word for word. No training reads it."
        ),
        group="training_data",
        scope="snapshot",
        settings=sections(),
        inputs=(Input(asset="token_shards"),),
    ),
)

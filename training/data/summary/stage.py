"""Stage `summarize`: counts the tokens of a corpus by site."""

from __future__ import annotations

from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections

SUMMARIZE = Stage(
    name="summarize",
    version="8",
    module="training.data.summary.summarize",
    libraries=("idna",),
    kinds=("json", "parquet"),
    gates=("counts_balance",),
    reads=("token_shards",),
)

ASSETS = (
    Asset(
        name="corpus_summary",
        stage=SUMMARIZE,
        description=(
            "The sites, sources and snapshots that the tokens of the corpus come from, with the share of each. How"
            " often each document is trained on is in the training plan."
        ),
        group="training_data",
        scope="section",
        sections=("snapshots",),
        settings=sections(),
        inputs=(Input(asset="token_shards", which="every"),),
    ),
)

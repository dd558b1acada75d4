"""Stage `index_rows`: lists every row of post-training and synthetic text by source, generator, address and 8-gram."""

from __future__ import annotations

from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections

INDEX_ROWS = Stage(
    name="index_rows",
    version="9",
    module="training.provenance.rows.build",
    libraries=("xxhash", "idna"),
    kinds=("parquet", "numpy"),
    gates=("every_row_is_in",),
)

ASSETS = (
    Asset(
        name="row_index",
        stage=INDEX_ROWS,
        description=(
            "Index of the rows of instructions, preferences and prompts, dropped ones too: the source of each, its"
            " number there, the model that wrote it, its URLs and its runs of eight words. `pedigree trace` reads it."
            " No training waits for it."
        ),
        group="training_data",
        scope="section",
        sections=("sft.data", "preferences.data", "align.prompts"),
        settings=sections(),
        inputs=tuple(Input(asset=name) for name in ("instruction_data", "preference_data", "prompt_data")),
    ),
    Asset(
        name="synthetic_row_index",
        stage=INDEX_ROWS,
        description=(
            "Index of the rows of synthetic text: the model that generated the row, the URLs in it and its runs of"
            " eight words. `pedigree trace` reads it. No training waits for it."
        ),
        group="synthesis",
        scope="section",
        sections=("synthesis.prompts",),
        settings=sections(),
        inputs=(Input(asset="synthetic_text"),),
    ),
)

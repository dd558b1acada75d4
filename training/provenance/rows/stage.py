"""Stage `index_rows`: lists every row of post-training and synthetic text by source, generator, address and 8-gram."""

from __future__ import annotations

from training.data.sections import sections
from training.stage import Asset, Input, Stage

INDEX_ROWS = Stage(
    name="index_rows",
    version="1",
    module="training.provenance.rows.build",
    libraries=("xxhash",),
    kinds=("parquet", "numpy"),
    gates=("every_row_is_in",),
)

ASSETS = (
    Asset(
        name="row_index",
        stage=INDEX_ROWS,
        description=(
            "Every row of instructions, preferences and prompts, kept or not, by source, row and generator, with the"
            " addresses in it and its runs of eight words. `pedigree trace` reads it. No training waits for it."
        ),
        group="training_data",
        scope="rows",
        settings=sections(),
        inputs=tuple(Input(asset=name) for name in ("instruction_data", "preference_data", "prompt_data")),
    ),
    Asset(
        name="synthetic_row_index",
        stage=INDEX_ROWS,
        description=(
            "Every row of text that a model of the recipe wrote, with its generator, the addresses in it and its runs"
            " of eight words. `pedigree trace` reads it. No training waits for it."
        ),
        group="synthesis",
        scope="synthesis",
        settings=sections(),
        inputs=(Input(asset="synthetic_text"),),
    ),
)

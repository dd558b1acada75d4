"""The table of stages that `python -m training` runs, collected from the folders in FOLDERS."""

from __future__ import annotations

from importlib import import_module

from training.contract.stage import Asset, Stage

# Each folder has a `stage.py` with the records of training/contract/stage.py. The order is that of the chain.
FOLDERS = (
    "training.adopt",
    "training.data.crawl",
    "training.data.extract",
    "training.data.quality",
    "training.data.filter",
    "training.data.dedup",
    "training.data.exams",
    "training.data.tokens",
    "training.data.summary",
    "training.provenance.text",
    "training.provenance",
    "training.order",
    "training.pretrain.stages",
    "training.posttrain.instructions",
    "training.posttrain.sft",
    "training.posttrain.preferences",
    "training.posttrain.prompts",
    "training.posttrain.reward",
    "training.posttrain.align",
    "training.quantize",
    "training.generate",
    "training.provenance.rows",
)

ASSETS: tuple[Asset, ...] = tuple(asset for folder in FOLDERS for asset in import_module(f"{folder}.stage").ASSETS)
STAGES: dict[str, Stage] = {asset.stage.name: asset.stage for asset in ASSETS}

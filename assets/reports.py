"""How well, how honestly, and whether it may be used. The work is under `evaluation`; the registry is in
resources.tracking."""

import dagster as dg

from assets.declare import chain_asset
from assets.promotion import materialize_and_promote
from assets.stage import Pipeline, materialize


@chain_asset
def model_scores(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """Benchmark scores of base, SFT and aligned model with standard errors; every sample is kept. Made by
    evaluation.scores."""
    return materialize(context, pipeline)


@chain_asset
def contamination_report(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """Overlap of everything trained on with every benchmark scored; scores on clean and dirty items.

    Made by evaluation.contamination.
    """
    return materialize(context, pipeline)


@chain_asset
def model_card(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The model card and one self-contained report of the whole run. Made by evaluation.card."""
    return materialize(context, pipeline)


@chain_asset
def promoted_model(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The registered model version; the champion alias moves only when scores and contamination pass for these very
    artifacts.

    The decision is made by evaluation.gate and carried out in the MLflow registry.
    """
    return materialize_and_promote(context, pipeline)

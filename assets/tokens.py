"""From documents to the order in which a model sees tokens. The work is under `training/data`."""

import dagster as dg

from assets.declare import chain_asset
from assets.stage import Pipeline, materialize


@chain_asset
def tokenizer(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """A byte-level vocabulary with its special tokens, with round trip and fertility. Made by
    training.data.tokenizer."""
    return materialize(context, pipeline)


@chain_asset
def token_shards(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """Memory-mapped token files of one snapshot; the sidecar leads from every token to its document.

    Made by training.data.tokenize.
    """
    return materialize(context, pipeline)


@chain_asset
def reference_plan(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The data order of the small model that DoReMi compares with, on the mixture that the recipe begins with.

    Made by training.data.plan.
    """
    return materialize(context, pipeline)


@chain_asset
def reference_model(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The small model that DoReMi compares with, trained as the base model is. Made by training.pretrain.stage."""
    return materialize(context, pipeline)


@chain_asset
def mixture_weights(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The share of each source, found by DoReMi: it grows where a small proxy model is still behind the reference.

    Made by training.pretrain.doremi.
    """
    return materialize(context, pipeline)


@chain_asset
def training_plan(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The data order: mixture, epochs, held-out documents. Which tokens step n sees is a function of it.

    Made by training.data.plan.
    """
    return materialize(context, pipeline)

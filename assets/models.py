"""From tokens to an aligned model. The work is under `training/pretrain` and `training/posttrain`."""

import dagster as dg

from assets.declare import chain_asset
from assets.stage import Pipeline, materialize


@chain_asset
def base_model(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The pretrained decoder in the transformers layout, with held-out bits per byte. Made by
    training.pretrain.stage."""
    return materialize(context, pipeline)


@chain_asset
def long_context_plan(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The data order of the long-context stage. Made by training.data.plan."""
    return materialize(context, pipeline)


@chain_asset
def long_context_model(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The base model trained on in longer rows, with needles found and what it costs in short ones. Made by
    training.pretrain.long_context."""
    return materialize(context, pipeline)


@chain_asset
def ladder_plan(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The data order of one small model of the recipe's scaling ladder. Made by training.data.plan."""
    return materialize(context, pipeline)


@chain_asset
def ladder_model(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """One small model of the recipe's scaling ladder, trained as the base model is. Made by
    training.pretrain.stage."""
    return materialize(context, pipeline)


@chain_asset
def scaling_fit(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """How the held-out loss falls with parameters and tokens over the ladder, with intervals, and the loss that it
    foretells for the recipe's own model. Made by evaluation.scaling."""
    return materialize(context, pipeline)


@chain_asset
def instruction_data(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """Conversations for supervised fine-tuning, each with its source and generator. Made by
    training.posttrain.instructions."""
    return materialize(context, pipeline)


@chain_asset
def sft_model(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The base model fine-tuned on conversations, loss on assistant tokens only. Made by training.posttrain.sft."""
    return materialize(context, pipeline)


@chain_asset
def preference_data(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """Prompts with a chosen and a rejected answer, each with its source. Made by training.posttrain.preference_data."""
    return materialize(context, pipeline)


@chain_asset
def reward_model(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """A learned reward (Bradley-Terry on the preferences), with its accuracy on held-out pairs. Made by
    training.posttrain.reward."""
    return materialize(context, pipeline)


@chain_asset
def aligned_model(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """The SFT model aligned by DPO, GRPO or RLOO, as the recipe says. Made by training.posttrain.align."""
    return materialize(context, pipeline)


@chain_asset
def synthetic_text(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """Text that a model of the recipe wrote, every row with its generator, prompt, seed and sampling settings; another
    recipe may name it as a source. Made by training.generate.synthetic."""
    return materialize(context, pipeline)

"""The stage `plan` and its assets: the data orders of the base model, the rungs, the reference and long context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.contract.records import RecipeError, no_such
from training.contract.stage import Asset, Input, Stage

if TYPE_CHECKING:
    from training.order.settings import MixtureRecipe
    from training.pretrain.settings import PretrainRecipe
    from training.recipe.recipe import Recipe

PLAN = Stage(
    name="plan",
    version="10",
    module="training.order.plan",
    libraries=("numpy",),
    kinds=("numpy",),
    gates=("counts_balance", "shares"),
    reads=("token_shards",),
)


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of mixture and batches, by which the plan is made.

    For a compute budget, they also include the most tokens that it pays for.
    """
    del part
    settings = settings_of(recipe.mixture, recipe.pretrain)
    affordable = affordable_tokens(recipe)
    return settings if affordable is None else settings | {"affordable": {"tokens": affordable}}


def settings_of(mixture: MixtureRecipe, pretrain: PretrainRecipe) -> dict[str, Any]:
    """Return the settings by which a plan is made, with the trainings that this one continues."""
    tokens, at = pretrain.continues.tokens, pretrain.continued_at
    continued = {"continued": {"tokens": list(tokens), "at": list(at)}} if tokens else {}
    return {"mixture": mixture, "pretrain": pretrain.batches, **continued}


def affordable_tokens(recipe: Recipe) -> int | None:
    """Return the most tokens that the compute budget pays for; None without a budget."""
    pretrain = recipe.pretrain
    if pretrain.compute_budget is None:
        return None
    shape = recipe.model.shape(vocab_size=recipe.tokenizer.vocabulary)
    return int(pretrain.compute_budget // shape.training_flops_per_token(pretrain.sequence_length))


def _check_sources(recipe: Recipe) -> None:
    """Raise RecipeError if the mixture names a source that the recipe's snapshots cannot have."""
    labels = sorted({snapshot.label for snapshot in recipe.snapshots})
    buckets = () if recipe.shards.buckets == "none" else ("head", "middle", "tail", "unscored")
    known = [f"{label}/{bucket}" for label in labels for bucket in buckets] or labels
    given = {"mixture.weights": recipe.mixture.weights, "mixture.source_epochs": recipe.mixture.source_epochs}
    given |= {"mixture.phases: weights": {name: 0 for phase in recipe.mixture.phases for name in phase.weights}}
    problems = [
        no_such(f"{where}: no source is called {name!r}; a source is the `label` of a snapshot", name, known)
        for where, names in given.items()
        for name in sorted(set(names) - set(known))
    ]
    if problems:
        raise RecipeError(*problems)


def _of_rung(recipe: Recipe, rung: str) -> dict[str, Any]:
    return _settings(recipe.on_rung(rung), "")


def _of_reference(recipe: Recipe, part: str) -> dict[str, Any]:
    return _settings(recipe.as_reference(), part)


def _of_long_context(recipe: Recipe, part: str) -> dict[str, Any]:
    return _settings(recipe.in_long_context(), part)


def _is_in_one_phase(recipe: Recipe) -> bool:
    return not recipe.mixture.phases


_TOKENS = (Input(asset="token_shards", which="every"), Input(asset="tokenizer"))

ASSETS = (
    Asset(
        name="training_plan",
        stage=PLAN,
        description=(
            "The data order: mixture, epochs and held-out documents. It fixes which tokens each training step sees."
        ),
        group="pretraining",
        scope="section",
        sections=("snapshots",),
        settings=_settings,
        inputs=(*_TOKENS, Input(asset="mixture_weights")),
        checks=(_check_sources,),
    ),
    Asset(
        name="reference_plan",
        stage=PLAN,
        description=(
            "The data order of DoReMi's reference model, which is small and trained on the shares of `mixture.weights`."
        ),
        group="mixture",
        scope="section",
        sections=("doremi.tokens",),
        settings=_of_reference,
        inputs=_TOKENS,
    ),
    Asset(
        name="long_context_plan",
        stage=PLAN,
        description="The data order of the long-context stage, which trains the base model further on longer rows.",
        group="long_context",
        scope="section",
        sections=("long_context.tokens",),
        settings=_of_long_context,
        inputs=(*_TOKENS, Input(asset="mixture_weights", when=_is_in_one_phase)),
    ),
    Asset(
        name="ladder_plan",
        stage=PLAN,
        description="The data order of one small model of the recipe's scaling ladder.",
        group="ladder",
        scope="rung",
        settings=_of_rung,
        inputs=(*_TOKENS, Input(asset="mixture_weights")),
    ),
)

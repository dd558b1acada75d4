"""Stages `pretrain`, `doremi` and `extend`, and their assets: base, reference, ladder and long-context models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from training.contract.blocking_checks import CLEAN_DATA
from training.contract.model_files import model_digest
from training.contract.records import RecipeError
from training.contract.scopes import AVERAGED_MODEL, KEPT_LONG_STEPS, KEPT_STEPS, kept_of
from training.contract.stage import Asset, Input, InputCheck, Stage
from training.contract.user_input.places import local_path
from training.data.sections import sections, with_parts
from training.pretrain.stages.held_out_needed import held_out_asked, held_out_there
from training.pretrain.stages.long_context_settings import LongContextRecipe
from training.pretrain.watch.keep_settings import KeepRecipe, KeptStatesRecipe
from training.pretrain.watch.settings import WatchRecipe

if TYPE_CHECKING:
    from training.contract.artifact import Artifact
    from training.recipe.recipe import Recipe

PRETRAIN = Stage(
    name="pretrain",
    version="17",
    module="training.pretrain.stages.pretrain",
    parts=(
        ("training.pretrain.losses.terms", "all"),
        ("training.pretrain.optim.optimizers", "all"),
        ("training.pretrain.models.families", "all"),
    ),
    libraries=("torch", "numpy", "safetensors"),
    kinds=("pytorch", "safetensors"),
    gates=("loss_finite_and_falling", "export_equals_trainer"),
    distributed=True,
    by_a_model=True,
    locations=(("teacher", "path"),),
    context=("watch", "optimizer"),
)
AVERAGE = Stage(
    name="average",
    version="2",
    module="training.pretrain.stages.average",
    kinds=("pytorch", "safetensors"),
)
DOREMI = Stage(
    name="doremi",
    version="14",
    module="training.pretrain.stages.doremi",
    parts=(
        ("training.pretrain.losses.terms", "all"),
        ("training.pretrain.optim.optimizers", "all"),
        ("training.pretrain.models.families", "all"),
    ),
    libraries=("torch", "numpy", "safetensors"),
    kinds=("pytorch", "json"),
    by_a_model=True,
)
EXTEND = Stage(
    name="extend",
    version="17",
    module="training.pretrain.stages.long_context",
    parts=(
        ("training.pretrain.losses.terms", "all"),
        ("training.pretrain.optim.optimizers", "all"),
        ("training.pretrain.models.families", "all"),
    ),
    libraries=("tokenizers", "torch", "numpy", "safetensors"),
    kinds=("pytorch", "safetensors"),
    gates=("loss_finite_and_falling", "export_equals_trainer", "needles_found", "short_context_kept"),
    distributed=True,
    by_a_model=True,
    context=("optimizer",),
)


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of model and training that a stage gets from the recipe.

    A teacher is identified by the digest of its folder, not by its path. What is watched is a section of its own.
    """
    from training.data.sources import resolve

    del part
    pretrain, watch, distill = recipe.pretrain, recipe.pretrain.watch, recipe.pretrain.distill
    plain = replace(
        pretrain, watch=WatchRecipe(), keep=KeepRecipe(), continues=replace(pretrain.continues, recipe=None)
    )
    settings: dict[str, Any] = {"model": recipe.model, "pretrain": plain}
    if watch != WatchRecipe():
        settings["watch"] = watch
    if distill.teacher:
        folder = local_path(resolve(distill.teacher), "pretrain.distill.teacher").resolve()
        settings["pretrain"] = replace(settings["pretrain"], distill=replace(distill, teacher=None))
        settings["teacher"] = {"digest": model_digest(folder), "path": str(folder)}
    return with_parts(settings)


def _check_stop(recipe: Recipe) -> None:
    """Raise RecipeError if there is nothing by which a rule that ends training early can judge, or too little is said.

    A rule by a suite decides the weights, so the number of items may not follow from the profile.
    """
    stop, watch = recipe.pretrain.stop, recipe.pretrain.watch
    if stop.patience_tokens is None:
        return
    if not stop.suite:
        held_out_asked("pretrain.stop")(recipe)
    elif stop.suite not in watch.suites:
        known = ", ".join(watch.suites) or "none"
        raise RecipeError(f"pretrain.stop.suite: {stop.suite!r} is not among pretrain.watch.suites ({known})")
    elif watch.items == "auto":
        raise RecipeError(
            f"pretrain.watch.items: auto follows from the profile, and pretrain.stop.suite: {stop.suite} lets the items"
            " decide when training ends; a number is right"
        )


def _stops_by_items(recipe: Recipe) -> bool:
    return bool(recipe.pretrain.stop.suite)


def _only_watches(recipe: Recipe) -> bool:
    return not _stops_by_items(recipe)


def _check_stop_text(recipe: Recipe, made: Mapping[str, Sequence[Artifact]]) -> None:
    if recipe.pretrain.stop.patience_tokens is not None and not _stops_by_items(recipe):
        held_out_there("training_plan", "pretrain.stop").check(recipe, made)


def _of_step(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of a model kept during pretraining: those of the whole training, and the number of the step.

    `part` names the step, as in `step-500`; empty, it means no step.
    """
    unwatched = replace(recipe, pretrain=replace(recipe.pretrain, watch=WatchRecipe()))
    return _settings(unwatched, "") | kept_of(part) | _state_of(recipe.pretrain.keep)


def _state_of(keep: KeptStatesRecipe) -> dict[str, Any]:
    return {"optimizer": True} if keep.optimizer else {}


def _of_average(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return how the kept steps are averaged. Which ones they are is said by the inputs."""
    del part
    return {"average": replace(recipe.pretrain.keep.average, steps="all")}


def _of_rung(recipe: Recipe, rung: str) -> dict[str, Any]:
    """Return the settings of one model of the scaling ladder (a rung), which is trained like the base model."""
    return _settings(recipe.on_rung(rung), "")


def _of_reference(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of DoReMi's reference model, which is trained like the base model."""
    return sections("model", "pretrain")(recipe.as_reference(), part)


def _of_proxy(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of DoReMi's proxy model, which is trained like its reference model."""
    return {"doremi": recipe.doremi} | _of_reference(recipe, part)


def _of_long_context(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of model, training and evaluation, and the row length of the base model for comparison.

    `part` names the step of a kept model.
    """
    longer = recipe.in_long_context()
    judged = replace(recipe.long_context, **{name: getattr(LongContextRecipe(), name) for name in _IN_PRETRAIN})
    settings = with_parts(
        {
            "model": longer.model,
            "pretrain": longer.pretrain,
            "long_context": judged,
            "short": {"sequence_length": recipe.pretrain.sequence_length},
        }
    )
    return settings | kept_of(part) | (_state_of(recipe.long_context.keep) if part else {})


# Fields of `long_context` that `in_long_context` copies into `model` and `pretrain`.
_IN_PRETRAIN = (
    "tokens",
    "sequence_length",
    "global_batch_tokens",
    "rope_theta",
    "rope_scaling",
    "across_documents",
    "learning_rate",
    "muon_learning_rate",
    "min_loss_fall",
    "keep",
)

_TOKENS = (Input(asset="token_shards", which="every"), Input(asset="tokenizer"))

ASSETS = (
    Asset(
        name="base_model",
        stage=PRETRAIN,
        description="The pretrained decoder in the transformers layout, with held-out bits per byte.",
        group="pretraining",
        scope="section",
        sections=("snapshots",),
        settings=_settings,
        inputs=(
            Input(asset="training_plan"),
            *_TOKENS,
            Input(asset="adopted_model"),
            Input(asset="watched_items", when=_stops_by_items),
        ),
        guards=(*CLEAN_DATA, Input(asset="watched_items", when=_only_watches)),
        checks=(_check_stop,),
        facts=(InputCheck(assets=("training_plan",), check=_check_stop_text),),
    ),
    Asset(
        name=KEPT_STEPS,
        stage=PRETRAIN,
        description=(
            "The base model as it was after a step, in the transformers layout. Its training writes it on the way; a "
            "step that is asked for later is made by training again up to it."
        ),
        group="pretraining",
        scope="step",
        sections=("pretrain.keep.is_asked",),
        settings=_of_step,
        inputs=(Input(asset="training_plan"), *_TOKENS, Input(asset="adopted_model")),
        guards=(*CLEAN_DATA, Input(asset="base_model")),
    ),
    Asset(
        name=AVERAGED_MODEL,
        stage=AVERAGE,
        description="The mean of the weights of kept steps, uniform or with weights that fall with their distance.",
        group="pretraining",
        scope="section",
        sections=("pretrain.keep.average.steps",),
        settings=_of_average,
        inputs=(Input(asset=KEPT_STEPS, which="averaged"),),
    ),
    Asset(
        name="reference_model",
        stage=PRETRAIN,
        description="DoReMi's reference: a small model, trained like the base model, to compare the proxy with.",
        group="mixture",
        scope="section",
        sections=("doremi.tokens",),
        settings=_of_reference,
        inputs=(Input(asset="reference_plan"), *_TOKENS),
        guards=CLEAN_DATA,
    ),
    Asset(
        name="mixture_weights",
        stage=DOREMI,
        description=(
            "The weight of each source, found by DoReMi: a source gets more weight where a small proxy model is worse "
            "than a reference model of the same size."
        ),
        group="mixture",
        scope="section",
        sections=("doremi.tokens",),
        settings=_of_proxy,
        inputs=(Input(asset="reference_plan"), Input(asset="reference_model"), *_TOKENS),
    ),
    Asset(
        name="long_context_model",
        stage=EXTEND,
        description=(
            "The base model trained further on longer rows, with its needle-in-a-haystack score and its loss on short "
            "rows."
        ),
        group="long_context",
        scope="section",
        sections=("long_context.tokens",),
        settings=_of_long_context,
        inputs=(Input(asset="base_model"), Input(asset="long_context_plan"), *_TOKENS),
        guards=CLEAN_DATA,
        checks=(held_out_asked("long_context"),),
        facts=(held_out_there("long_context_plan", "long_context"),),
    ),
    Asset(
        name=KEPT_LONG_STEPS,
        stage=EXTEND,
        description=(
            "The long-context model as it was after a step, without its needles. Its training writes it on the way; a "
            "step that is asked for later is made by training again up to it."
        ),
        group="long_context",
        scope="step",
        sections=("long_context.keep.is_asked",),
        settings=_of_long_context,
        inputs=(Input(asset="base_model"), Input(asset="long_context_plan"), *_TOKENS),
        guards=(*CLEAN_DATA, Input(asset="long_context_model")),
    ),
    Asset(
        name="ladder_model",
        stage=PRETRAIN,
        description="One small model of the recipe's scaling ladder, which predicts the loss of larger models.",
        group="ladder",
        scope="rung",
        settings=_of_rung,
        inputs=(Input(asset="ladder_plan"), *_TOKENS),
        guards=CLEAN_DATA,
    ),
)

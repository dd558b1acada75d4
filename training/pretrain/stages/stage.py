"""Stages `pretrain`, `doremi` and `extend`, and their assets: base, reference, ladder and long-context models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from training.contract.blocking_checks import CLEAN_DATA
from training.contract.model_files import model_digest
from training.contract.scopes import AVERAGED_MODEL
from training.contract.stage import Asset, Input, InputCheck, Stage
from training.contract.user_input.places import local_path
from training.data.sections import sections, with_parts
from training.pretrain.stages.held_out_needed import held_out_asked, held_out_there
from training.pretrain.stages.long_context_settings import LongContextRecipe
from training.pretrain.watch.keep_settings import KeepRecipe
from training.pretrain.watch.settings import WatchRecipe

if TYPE_CHECKING:
    from training.contract.artifact import Artifact
    from training.recipe.recipe import Recipe

PRETRAIN = Stage(
    name="pretrain",
    version="15",
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
    version="1",
    module="training.pretrain.stages.average",
    kinds=("pytorch", "safetensors"),
)
DOREMI = Stage(
    name="doremi",
    version="13",
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
    version="15",
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
)


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of model and training that a stage gets from the recipe.

    A teacher is identified by the digest of its folder, not by its path. What is watched is a section of its own.
    """
    from training.data.sources import resolve

    del part
    pretrain, watch, distill = recipe.pretrain, recipe.pretrain.watch, recipe.pretrain.distill
    plain = replace(pretrain, watch=WatchRecipe(), keep=KeepRecipe())
    settings: dict[str, Any] = {"model": recipe.model, "pretrain": plain}
    if watch != WatchRecipe():
        settings["watch"] = watch
    if distill.teacher:
        folder = local_path(resolve(distill.teacher), "pretrain.distill.teacher").resolve()
        settings["pretrain"] = replace(settings["pretrain"], distill=replace(distill, teacher=None))
        settings["teacher"] = {"digest": model_digest(folder), "path": str(folder)}
    return with_parts(settings)


def _check_stop(recipe: Recipe) -> None:
    if recipe.pretrain.stop.patience_tokens is not None:
        held_out_asked("pretrain.stop")(recipe)


def _check_stop_text(recipe: Recipe, made: Mapping[str, Sequence[Artifact]]) -> None:
    if recipe.pretrain.stop.patience_tokens is not None:
        held_out_there("training_plan", "pretrain.stop").check(recipe, made)


def _of_step(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of a model kept during pretraining: those of the whole training, and the number of the step.

    `part` names the step, as in `step-500`; empty, it means no step.
    """
    unwatched = replace(recipe, pretrain=replace(recipe.pretrain, watch=WatchRecipe()))
    kept: dict[str, Any] = {"kept": {"step": int(part.removeprefix("step-"))}} if part else {}
    return _settings(unwatched, "") | kept | ({"optimizer": True} if recipe.pretrain.keep.optimizer else {})


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
    """Return the settings of model, training and evaluation, and the row length of the base model for comparison."""
    del part
    longer = recipe.in_long_context()
    judged = replace(recipe.long_context, **{name: getattr(LongContextRecipe(), name) for name in _IN_PRETRAIN})
    return with_parts(
        {
            "model": longer.model,
            "pretrain": longer.pretrain,
            "long_context": judged,
            "short": {"sequence_length": recipe.pretrain.sequence_length},
        }
    )


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
        inputs=(Input(asset="training_plan"), *_TOKENS, Input(asset="adopted_model")),
        guards=(*CLEAN_DATA, Input(asset="watched_items")),
        checks=(_check_stop,),
        facts=(InputCheck(assets=("training_plan",), check=_check_stop_text),),
    ),
    Asset(
        name="kept_steps",
        stage=PRETRAIN,
        description=(
            "The base model as it was after a step, in the transformers layout. Its training writes it on the way; a "
            "step that is asked for later is made by training again up to it."
        ),
        group="pretraining",
        scope="step",
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
        inputs=(Input(asset="kept_steps", which="averaged"),),
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

"""Check by arithmetic, before anything starts, whether a profile can run a recipe, and name a layout that can.

The memory of a node is known for stages that run on this machine or request `memory_gb` from a scheduler, and that of
a GPU if the profile names its kind (`gpu`). In all other cases pretraining checks the memory on the node itself
(docs/pretraining.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from assets.state.chain import CHAIN
from resources.compute.size import Size
from resources.profile import ProfileError, load_profile
from training.contract.engines.engine import check_installed
from training.contract.records import RecipeError, no_such
from training.contract.scopes import CHOSEN_MODEL, asks_for
from training.order.batch_settings import BatchPhase
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.reward.settings import RewardRecipe
from training.posttrain.sft.settings import SftRecipe
from training.pretrain.capacity.devices import MFU, Device, device_of, step_seconds
from training.pretrain.capacity.divisible import check_degrees
from training.pretrain.capacity.fp8_checks import check_fp8
from training.pretrain.capacity.needs import (
    Needed,
    Pretraining,
    Tuning,
    bytes_beside_reference,
    certain_bytes,
    held_bytes,
    most,
    scoring_bytes,
    training_bytes,
    tuning_bytes,
)
from training.pretrain.capacity.room import check_memory, gathering, machine_memory
from training.pretrain.models.account import Recompute
from training.pretrain.models.borrowed import BY_TRANSFORMERS
from training.pretrain.models.families import is_borrowed
from training.pretrain.models.shape import ModelConfig
from training.pretrain.parallel.degrees import Degrees
from training.recipe.recipe import Recipe
from training.recipe.settings.evaluation import JUDGED_MODELS
from training.recipe.settings.judged_chat import JudgedChatRecipe
from training.recipe.settings.safety import SafetyRecipe

Section = SftRecipe | RewardRecipe | AlignRecipe
ChatRecipe = JudgedChatRecipe | SafetyRecipe

DOUBLINGS = 5  # of the nodes, that are tried where a model does not fit
ROOM = 0.92  # of a GPU, that a layout which is offered may need
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
DEGREES = ("shard", "tensor", "context", "expert", "pipeline", "pipeline_chunks")


def check_fit(recipe: Recipe, profile: str) -> None:
    """Raise ProfileError, showing the calculation, if the profile cannot run the recipe.

    The profile's `stages` must be assets of the chain, and its engines must be installed. Its micro-batches must divide
    the recipe's batches, its processes must be able to share each model, and its nodes must have the memory that
    training needs at least.
    """
    loaded = load_profile(profile)
    unknown = sorted(set(loaded.stages) - set(CHAIN))
    if unknown:
        raise ProfileError(no_such(f"{profile}: stages.{unknown[0]}: no such asset", unknown[0], CHAIN))
    try:
        for asset in CHAIN:
            size = loaded.size_for(asset)
            if size.backend == "local":  # the nodes of a scheduler have environments of their own
                check_installed(size.engine)
    except RecipeError as error:
        raise ProfileError(f"{profile}: {error}") from None
    for asset, check in checks(recipe):
        try:
            check(loaded.size_for(asset))
        except RecipeError as error:
            raise ProfileError(f"{profile}: {asset}: {error}") from None


def checks(recipe: Recipe) -> Iterator[tuple[str, Callable[[Size], None]]]:
    """Yield (asset, check) for every asset that trains or scores a model; call the check with the asset's size."""
    for asset, one in pretrained(recipe):
        yield asset, partial(_check_pretraining, one)
    if recipe.doremi.tokens:
        yield "mixture_weights", partial(_check_proxy, recipe.as_reference())
    for asset, section in tuned(recipe):
        yield asset, partial(_check_tuning, recipe, section)
    for asset in scored(recipe):
        yield asset, partial(_check_scoring, recipe, asset)


def pretrained(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Yield (asset, recipe) for every asset that pretraining makes. The recipe has the shape of that asset's model."""
    if asks_for(recipe, *CHAIN["base_model"].sections):
        yield "base_model", recipe
    if recipe.long_context.tokens:
        yield "long_context_model", recipe.in_long_context()
    if recipe.doremi.tokens:
        yield "reference_model", recipe.as_reference()
    for rung in recipe.ladder.rungs:
        yield "ladder_model", recipe.on_rung(rung.name)


def tuned(recipe: Recipe) -> Iterator[tuple[str, Section]]:
    """Yield the asset and the section of each post-training."""
    if asks_for(recipe, *CHAIN["sft_model"].sections):
        yield "sft_model", recipe.sft
    if asks_for(recipe, *CHAIN["aligned_model"].sections):
        yield "reward_model", recipe.reward
        yield "aligned_model", recipe.align


def scored(recipe: Recipe) -> Iterator[str]:
    """Yield every asset for which models are scored and not trained."""
    if recipe.evaluation.suites:
        yield "model_scores"
        if asks_for(recipe, *CHAIN["step_scores"].sections):
            yield "step_scores"
        if recipe.promote.best_by:
            yield CHOSEN_MODEL
        if asks_for(recipe, *CHAIN["aligned_model"].sections):
            yield "alignment_rewards"
    yield from chats(recipe)


def chats(recipe: Recipe) -> dict[str, ChatRecipe]:
    """Return the section of each asset for which the models that chat are asked, each by itself."""
    sections: dict[str, ChatRecipe] = {"judged_chat": recipe.judged_chat, "safety_answers": recipe.safety}
    return {asset: section for asset, section in sections.items() if asks_for(recipe, *CHAIN[asset].sections)}


def shape_of(recipe: Recipe) -> ModelConfig:
    """Return the shape of the recipe's model."""
    return recipe.model.shape(vocab_size=recipe.tokenizer.vocabulary)


def trainings_of(recipe: Recipe) -> list[Pretraining]:
    """Return what a pretraining trains, phase by phase. A phase has one row length and one batch size.

    For `tokens: auto` it is one batch, which is enough because memory depends only on the batch size.
    """
    batches, shape = recipe.pretrain.batches, shape_of(recipe)
    phases: tuple[BatchPhase, ...] = (
        batches.of_tokens(batches.global_batch_tokens) if batches.tokens == "auto" else batches
    ).phases
    return [Pretraining(shape=shape, recipe=recipe.pretrain, phase=phase) for phase in phases]


# Pretraining


def _check_pretraining(recipe: Recipe, size: Size) -> None:
    trainings = trainings_of(recipe)
    _check_division(trainings, recipe, size)
    needed = most([certain_bytes(one, size) for one in trainings])
    if size.gpu and size.gpus_per_node:
        gpu = device_of(size.gpu)
        try:
            check_memory("pretrain", needed, together=1, total=gpu.memory_bytes, where=f"one {gpu.name}")
        except RecipeError as error:
            largest = max(trainings, key=lambda one: one.phase.sequence_length)
            raise RecipeError(f"{error}; {_fitting(largest, size, gpu)}") from None
    _check_node("pretrain", needed, size, together=size.processes)


def _check_division(trainings: list[Pretraining], recipe: Recipe, size: Size) -> None:
    processes, phases = size.nodes * size.processes, tuple(one.phase for one in trainings)
    check_degrees(
        Degrees.of(size),
        trainings[0].shape,
        phases=phases,
        optimizer=recipe.pretrain.optimizer,
        part=recipe.pretrain.optimizer_part,
        processes=processes,
        is_audited=size.audit,
        micro_batch_tokens=size.micro_batch_tokens,
    )
    if recipe.pretrain.precision == "fp8":
        check_fp8(
            trainings[0].shape,
            phases=phases,
            degrees=Degrees.of(size),
            processes=processes,
            micro_batch_tokens=size.micro_batch_tokens,
            compiled=bool(size.compile),
            gpus_per_node=size.gpus_per_node,
        )
    for one in trainings:
        one.passes(size)


def _fitting(training: Pretraining, size: Size, gpu: Device) -> str:
    """Return a sentence on the fastest layout that fits; if none does, on the fewest nodes, of a few doublings."""
    if found := layouts(training, size, gpu):
        return f"{in_words(found[0][0])} fits"
    world = size.nodes * size.processes
    said = f"no layout of {world} process{'es' if world > 1 else ''} fits"
    if size.backend == "local":
        return said
    for doublings in range(1, DOUBLINGS + 1):
        more = replace(size, nodes=size.nodes * 2**doublings)
        if found := layouts(training, more, gpu):
            return f"{said}; on {more.nodes} nodes {in_words(found[0][0])} does"
    return f"{said}, nor on {size.nodes * 2**DOUBLINGS} nodes"


def layouts(training: Pretraining, size: Size, gpu: Device, *, mfu: float = MFU) -> list[tuple[Size, Needed, float]]:
    """Return the layouts of as many processes that fit into the share ROOM of a GPU, the fastest first.

    Each has what it needs in its largest moment, and the predicted seconds of a step. Tried are powers of two for
    `shard`, `tensor`, `pipeline` and, in models with experts, `expert`; micro-batches of powers of two times a row; the
    three kinds of recomputation; and the ZeRO stages. Context and pipeline chunks stay as they are given.
    """
    found = []
    for one in _candidates(training, size):
        with suppress(RecipeError):
            check_degrees(
                Degrees.of(one),
                training.shape,
                phases=(training.phase,),
                optimizer=training.recipe.optimizer,
                processes=one.nodes * one.processes,
            )
            needed = most(list(training_bytes(training, one, on_gpu=True).values()))
            if sum(needed.values()) <= ROOM * gpu.memory_bytes:
                found.append((one, needed, step_seconds(training, one, gpu, mfu=mfu)))
    return sorted(found, key=lambda fit: (fit[2], sum(fit[1].values())))


def _candidates(training: Pretraining, size: Size) -> Iterator[Size]:
    world = size.nodes * size.processes
    experts = _powers(world) if training.shape.experts.count else [1]
    for shard, tensor, pipeline, expert in product(_powers(world), _powers(size.processes), _powers(world), experts):
        if world % (shard * tensor * pipeline * expert * size.context):
            continue
        changed: dict[str, Any] = {"shard": shard, "tensor": tensor, "pipeline": pipeline, "expert": expert}
        changed["pipeline_chunks"] = size.pipeline_chunks if pipeline > 1 else 1
        changed["gather_dtype"] = size.gather_dtype if shard > 1 else "fp32"
        stages = (3, 2, 1) if shard > 1 and pipeline == 1 else (3,)
        for rows, recompute, stage in product(_powers(training.phase.rows), RECOMPUTES, stages):
            tokens = rows * training.phase.sequence_length
            yield replace(size, **changed, micro_batch_tokens=tokens, recompute=recompute, zero_stage=stage)


def _powers(largest: int) -> list[int]:
    return [2**exponent for exponent in range(largest.bit_length())]


def in_words(size: Size) -> str:
    """Return a layout as the fields of a profile that define it, such as `shard=8 micro_batch_tokens=8192`."""
    said = [f"{name}={getattr(size, name)}" for name in DEGREES if getattr(size, name) > 1]
    said += [f"zero_stage={size.zero_stage}"] if size.zero_stage < 3 else []
    said += [f"gather_dtype={size.gather_dtype}"] if size.gather_dtype != "fp32" else []
    return " ".join([*said, f"micro_batch_tokens={size.micro_batch_tokens}", f"recompute={size.recompute}"])


def _check_proxy(recipe: Recipe, size: Size) -> None:
    _check_node("doremi", bytes_beside_reference(trainings_of(recipe)[0], size), size, together=1)


# Post-training and scoring


def tuning_of(recipe: Recipe, section: Section, size: Size) -> Tuning:
    """Return what a section of the recipe tunes, in rows that are as long as they may be."""
    is_reward, learns_from = isinstance(section, RewardRecipe), learns(section)
    return Tuning.of(shape_of(recipe), section, size, learns_from=learns_from, is_reward=is_reward)


def learns(section: Section) -> str:
    """Return what a section learns from: conversations, pairs, answers or samples."""
    if isinstance(section, AlignRecipe):
        return section.declared.learns_from
    return "pairs" if isinstance(section, RewardRecipe) else "conversations"


def scoring_of(recipe: Recipe, asset: str, size: Size) -> Tuning:
    """Return what is scored for an asset, in rows that are as long as they may be."""
    models = JUDGED_MODELS if asset == "alignment_rewards" else 1
    rows = chats(recipe).get(asset, recipe.evaluation).batch_size
    return Tuning.scored(shape_of(recipe), shard=size.shard, rows=rows, models=models)


def answer_weights(tuning: Tuning, answers: Needed, size: Size, device: Device | None = None) -> tuple[bool, str]:
    """Return whether weights stay gathered while answers are drawn, and why, as the job will decide it.

    `answers` is what it needs if they do. `device` is the kind of GPU if the profile names none.
    """
    gpu = (device_of(size.gpu) if size.gpu else device) if size.gpus_per_node else None
    room = gpu.memory_bytes if gpu else None
    return gathering(size.answer_weights, shard=tuning.shard, needed=answers, room=room)


def _check_tuning(recipe: Recipe, section: Section, size: Size) -> None:
    processes = size.nodes * size.processes
    if section.batch_size % processes:
        raise RecipeError(f"batch_size={section.batch_size} is not a multiple of processes * nodes = {processes}")
    if section.can_be_spread:
        _check_shard(recipe, size)
    if learns(section) == "samples":
        _check_answer_weights(size, size.shard if section.can_be_spread else 1)
    check = partial(_check_tuning_memory, recipe, section)
    try:
        check(size)
    except RecipeError as error:
        way = _nearest(check, size) if section.can_be_spread else "its method cannot divide the model"
        raise RecipeError(f"{error}; {way}") from None


def _check_tuning_memory(recipe: Recipe, section: Section, size: Size) -> None:
    """Check what a process certainly needs, with rows of one token, against its GPU or the memory of its node."""
    if section.batch_size % (size.nodes * size.processes):
        raise RecipeError("the batch is not divided")
    planned = tuning_of(recipe, section, size).with_rows_of(1)
    needed = held_bytes(planned)
    if size.gpu and size.gpus_per_node:
        gpu = device_of(size.gpu)
        moments = tuning_bytes(planned, gathers=size.answer_weights == "gathered")
        for what, parts in (("post-training", needed), ("a step", most(list(moments.values())))):
            check_memory(what, parts, together=1, total=gpu.memory_bytes, where=f"one {gpu.name}")
    _check_node("post-training", needed, size, together=size.processes)


def _check_scoring(recipe: Recipe, asset: str, size: Size) -> None:
    if asset in ("model_scores", "step_scores", CHOSEN_MODEL):
        recipe.evaluation.check_processes(size.nodes * size.processes)
    _check_shard(recipe, size)
    _check_answer_weights(size, size.shard)
    check = partial(_check_scoring_memory, recipe, asset)
    try:
        check(size)
    except RecipeError as error:
        raise RecipeError(f"{error}; {_nearest(check, size)}") from None


def _check_scoring_memory(recipe: Recipe, asset: str, size: Size) -> None:
    if size.gpu and size.gpus_per_node:
        gpu, planned = device_of(size.gpu), scoring_of(recipe, asset, size).with_rows_of(1)
        moments = scoring_bytes(replace(planned, positions=1), gathers=size.answer_weights == "gathered")
        needed = most(list(moments.values()))
        check_memory("scoring", needed, together=1, total=gpu.memory_bytes, where=f"one {gpu.name}")


def _nearest(check: Callable[[Size], None], size: Size) -> str:
    """Return a sentence on the nearest layout that passes a check: the least `shard`, on the fewest nodes.

    Weights that stay gathered while answers are drawn are given up first.
    """
    if size.answer_weights == "gathered":
        with suppress(RecipeError):
            check(replace(size, answer_weights="sharded"))
            return "answer_weights=sharded fits"
    for doublings in range(DOUBLINGS + 1 if size.backend != "local" else 1):
        nodes = size.nodes * 2**doublings
        for shard in (one for one in range(1, nodes * size.processes + 1) if nodes * size.processes % one == 0):
            with suppress(RecipeError):
                check(replace(size, nodes=nodes, shard=shard))
                return f"on {nodes} nodes shard={shard} fits" if doublings else f"shard={shard} fits"
    more = "" if size.backend == "local" else f", nor on {size.nodes * 2**DOUBLINGS} nodes"
    return f"no shard of {size.nodes * size.processes} processes fits{more}"


def _check_shard(recipe: Recipe, size: Size) -> None:
    if size.shard > 1 and is_borrowed(shape_of(recipe)):
        raise RecipeError(
            f"shard={size.shard}: model.family {recipe.model.family!r} {BY_TRANSFORMERS}, and is not divided among"
            " processes; shard: 1 is right"
        )
    processes = size.nodes * size.processes
    if processes % size.shard:
        raise RecipeError(f"processes * nodes = {processes} is not a multiple of shard={size.shard}")


def _check_answer_weights(size: Size, shard: int) -> None:
    if size.answer_weights != "auto" and shard == 1:
        raise RecipeError(f"answer_weights={size.answer_weights} with a whole model in each process: auto is right")


def _check_node(what: str, needed: Needed, size: Size, *, together: int) -> None:
    """Check that a training without GPUs fits into a node's memory, if that memory is known."""
    if size.gpus_per_node or (size.backend != "local" and size.memory_gb is None):
        return
    total, where = machine_memory() if size.backend == "local" else (round((size.memory_gb or 0) * 2**30), "memory_gb")
    check_memory(what, needed, together=together, total=total, where=where)

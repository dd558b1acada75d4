"""Check by arithmetic, before anything starts, whether a profile can run a recipe.

The memory of a node is known for stages that run on this machine or request `memory_gb` from a scheduler, and that of
a GPU if the profile names its kind (`gpu`). In all other cases pretraining checks the memory on the node itself
(docs/pretraining.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from assets.chain import CHAIN
from resources.compute.size import Size
from resources.profile import ProfileError, load_profile
from training.engines.engine import check_installed
from training.order.batch_settings import BatchPhase
from training.posttrain.align.method import method_names
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.forecast import (
    PlannedSampling,
    PlannedTuning,
    gathering,
    memory_before_and_after,
    memory_beside_steps,
    memory_of_answers,
    memory_of_gathered_sampling,
    memory_of_sampling,
    memory_of_steps,
    memory_without_steps,
    models_beside,
)
from training.posttrain.planned import MOMENTS, OPTIM, has_reference, planned_sampling, planned_tuning
from training.posttrain.reward.settings import RewardRecipe
from training.posttrain.scoring import LEARNED
from training.posttrain.sft.settings import SftRecipe
from training.pretrain.degrees import Degrees, micro_batches_in
from training.pretrain.devices import Device, device_of
from training.pretrain.divisible import check_degrees
from training.pretrain.forecast import Layout, PlannedTraining, in_words, layouts
from training.pretrain.fp8 import check_fp8
from training.pretrain.memory import (
    Needed,
    check_memory,
    machine_memory,
    needed_beside_reference,
    needed_to_train,
    needed_to_tune,
)
from training.pretrain.models.shape import ModelConfig
from training.recipe import Recipe
from training.records import RecipeError, no_such
from training.scopes import has_assets
from training.settings.evaluation import JUDGED_MODELS, JUDGED_PROMPTS

DOUBLINGS = 5  # of the nodes, that are tried where a model does not fit
DIVERGES = "kto"  # the loss of KTO that estimates the divergence from the reference


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
    """Yield (asset, check) for every asset that trains a model; call the check with the asset's size."""
    for asset, one in pretrained(recipe):
        yield asset, partial(_check_pretraining, one)
    if recipe.doremi.tokens:
        yield "mixture_weights", partial(_check_proxy, recipe.as_reference())
    for asset, section, parameters, beside in tuned(recipe):
        yield asset, partial(_check_tuning, recipe, section, parameters, beside=beside)
    for asset in scoring(recipe):
        yield asset, partial(_check_scoring, recipe, asset)


def tuned(recipe: Recipe) -> Iterator[tuple[str, SftRecipe | RewardRecipe | AlignRecipe, int, int]]:
    """Yield asset, section, weights of the model, and weights of the frozen models beside it, of each post-training."""
    whole, align = _shape(recipe), recipe.align
    head = 0 if whole.tied_embeddings else whole.vocab_size * whole.width
    policy, judge = whole.parameter_count, whole.parameter_count - head
    # Sampling needs the reward model beside the policy; full fine-tuning with `beta` also the initial policy.
    samples = align.declared.learns_from == "samples"
    beside = (judge if LEARNED in align.reward_weights else 0) + (policy if has_reference(align) else 0)
    if has_assets(recipe, "sft"):
        yield "sft_model", recipe.sft, policy, 0
    if has_assets(recipe, "align"):
        yield "reward_model", recipe.reward, judge, 0
        yield "aligned_model", align, policy, beside if samples else 0


def scoring(recipe: Recipe) -> Iterator[str]:
    """Yield every asset for which models are scored and not trained."""
    if recipe.evaluation.suites:
        yield "model_scores"
        if has_assets(recipe, "align"):
            yield "alignment_rewards"


def pretrained(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Yield (asset, recipe) for every asset that pretraining makes. The recipe has the shape of that asset's model."""
    if has_assets(recipe, "corpus"):
        yield "base_model", recipe
    if recipe.long_context.tokens:
        yield "long_context_model", recipe.in_long_context()
    if recipe.doremi.tokens:
        yield "reference_model", recipe.as_reference()
    for rung in recipe.ladder.rungs:
        yield "ladder_model", recipe.on_rung(rung.name)


def _shape(recipe: Recipe) -> ModelConfig:
    return recipe.model.shape(vocab_size=recipe.tokenizer.vocabulary)


def _phases(recipe: Recipe) -> tuple[BatchPhase, ...]:
    """Return the phases of a training. A phase has one row length and one batch size.

    For `tokens: auto` they are one batch, which is enough because memory depends only on the batch size.
    """
    batches = recipe.pretrain.batches
    return (batches.of_tokens(batches.global_batch_tokens) if batches.tokens == "auto" else batches).phases


def _check_pretraining(recipe: Recipe, size: Size) -> None:
    processes, degrees, shape = size.nodes * size.processes, Degrees.of(size), _shape(recipe)
    phases = _phases(recipe)
    check_degrees(
        degrees,
        shape,
        phases=phases,
        optimizer=recipe.pretrain.optimizer,
        part=recipe.pretrain.optimizer_part,
        processes=processes,
        is_audited=size.audit,
        micro_batch_tokens=size.micro_batch_tokens,
    )
    if recipe.pretrain.precision == "fp8":
        check_fp8(
            shape,
            phases=phases,
            degrees=degrees,
            processes=processes,
            micro_batch_tokens=size.micro_batch_tokens,
            compiled=bool(size.compile),
            gpus_per_node=size.gpus_per_node,
        )
    for phase in phases:
        micro_batches_in(
            global_batch_tokens=phase.global_batch_tokens,
            sequence_length=phase.sequence_length,
            micro_batch_tokens=size.micro_batch_tokens,
            data_parallel=degrees.row_sets(processes),
        )
    needed = needed_to_train(shape, recipe.pretrain, phases, size, processes=processes, probabilities=False)
    if size.gpu and size.gpus_per_node:
        _check_gpu(recipe, shape, phases, needed, size)
    _check_node("pretrain", needed, size, together=size.processes)


def _check_gpu(recipe: Recipe, shape: ModelConfig, phases: tuple[BatchPhase, ...], needed: Needed, size: Size) -> None:
    """Check the needs of a process against its GPU. If they are too large, name the fastest layout that fits."""
    gpu = device_of(size.gpu or "")
    try:
        check_memory("pretrain", needed, together=1, total=gpu.memory_bytes, where=f"one {gpu.name}")
    except RecipeError as error:
        layout = Layout.of(size)
        trained = [PlannedTraining(shape=shape, recipe=recipe.pretrain, phase=phase) for phase in phases]
        largest = max(trained, key=lambda one: one.phase.sequence_length)
        fitting = layouts(largest, layout, gpu)
        advice = f"{in_words(fitting[0].layout)} fits" if fitting else _more_nodes(largest, layout, gpu)
        raise RecipeError(f"{error}; {advice}") from None


def _more_nodes(training: PlannedTraining, layout: Layout, gpu: Device) -> str:
    """Return a sentence on the fewest nodes, of a few doublings, on which a model fits that does not fit here."""
    said = f"no layout of {layout.world} process{'es' if layout.world > 1 else ''} fits"
    for doublings in range(1, DOUBLINGS + 1):
        more = replace(layout, nodes=layout.nodes * 2**doublings)
        if fitting := layouts(training, more, gpu):
            return f"{said}; on {more.nodes} nodes {in_words(fitting[0].layout)} does"
    return f"{said}, nor on {layout.nodes * 2**DOUBLINGS} nodes"


def _check_proxy(recipe: Recipe, size: Size) -> None:
    needed = needed_beside_reference(
        _shape(recipe), recipe.pretrain, recipe.pretrain.phases[0], size, probabilities=False
    )
    _check_node("doremi", needed, size, together=1)


def _check_tuning(
    recipe: Recipe, section: SftRecipe | RewardRecipe | AlignRecipe, parameters: int, size: Size, *, beside: int = 0
) -> None:
    processes = size.nodes * size.processes
    if section.batch_size % processes:
        raise RecipeError(f"batch_size={section.batch_size} is not a multiple of processes * nodes = {processes}")
    if shared_by(section, size) > 1:
        _check_shard(size)
    if _learns_from(section) == "samples":
        _check_answer_weights(size, shared_by(section, size))
    check = partial(_check_tuning_memory, recipe, section, parameters, beside)
    try:
        check(size)
    except RecipeError as error:
        way = _nearest(check, size) if section.can_be_spread else "its method cannot divide the model"
        raise RecipeError(f"{error}; {way}") from None


def _check_tuning_memory(
    recipe: Recipe, section: SftRecipe | RewardRecipe | AlignRecipe, parameters: int, beside: int, size: Size
) -> None:
    """Check what a process of post-training certainly needs against its GPU, or against the memory of its node."""
    _check_batch(section, size)
    needed = needed_for(section, parameters, beside, size)
    if size.gpu and size.gpus_per_node:
        gpu = device_of(size.gpu)
        where = f"one {gpu.name}"
        check_memory("post-training", needed, together=1, total=gpu.memory_bytes, where=where)
        if (steps := steps_needed_for(recipe, section, size, is_certain=True)) is not None:
            check_memory("a step", steps, together=1, total=gpu.memory_bytes, where=where)
    _check_node("post-training", needed, size, together=size.processes)


def _check_batch(section: SftRecipe | RewardRecipe | AlignRecipe, size: Size) -> None:
    processes = size.nodes * size.processes
    if section.batch_size % processes:
        raise RecipeError(f"batch_size={section.batch_size} is not a multiple of processes * nodes = {processes}")


def _check_scoring(recipe: Recipe, asset: str, size: Size) -> None:
    _check_shard(size)
    _check_answer_weights(size, size.shard)
    check = partial(_check_scoring_memory, recipe, asset)
    try:
        check(size)
    except RecipeError as error:
        raise RecipeError(f"{error}; {_nearest(check, size)}") from None


def _check_scoring_memory(recipe: Recipe, asset: str, size: Size) -> None:
    needed = scoring_needed_for(recipe, asset, size, is_certain=True)
    if needed and size.gpu:
        gpu = device_of(size.gpu)
        check_memory("scoring", needed, together=1, total=gpu.memory_bytes, where=f"one {gpu.name}")


def _nearest(check: Callable[[Size], None], size: Size) -> str:
    """Return a sentence on the nearest layout that passes a check: the least `shard`, on the fewest nodes.

    Weights that stay gathered while answers are drawn are given up first.
    """
    if size.answer_weights == "gathered":
        with suppress(RecipeError):
            check(replace(size, answer_weights="sharded"))
            return "answer_weights=sharded fits"
    for doublings in range(DOUBLINGS + 1):
        nodes = size.nodes * 2**doublings
        for shard in range(1, nodes * size.processes + 1):
            if (nodes * size.processes) % shard:
                continue
            try:
                check(replace(size, nodes=nodes, shard=shard))
            except RecipeError:
                continue
            return f"on {nodes} nodes shard={shard} fits" if doublings else f"shard={shard} fits"
    more = "" if size.backend == "local" else f", nor on {size.nodes * 2**DOUBLINGS} nodes"
    return f"no shard of {size.nodes * size.processes} processes fits{more}"


def needed_for(section: SftRecipe | RewardRecipe | AlignRecipe, parameters: int, beside: int, size: Size) -> Needed:
    """Return the bytes that a process of a post-training needs, by purpose."""
    own_optimizer = MOMENTS.get(section.trl.get("optim", OPTIM)) != MOMENTS[OPTIM]
    needed = needed_to_tune(parameters, adapters=bool(section.peft), own_optimizer=own_optimizer, beside=beside)
    return {name: part // shared_by(section, size) for name, part in needed.items()}


def steps_needed_for(
    recipe: Recipe,
    section: SftRecipe | RewardRecipe | AlignRecipe,
    size: Size,
    *,
    is_certain: bool = False,
    device: Device | None = None,
) -> Needed | None:
    """Return the predicted bytes, by purpose, of the steps of a post-training on GPUs.

    The rows have `max_length` tokens or, if `is_certain`, one: so much is needed whatever the data are. A lower bound
    where layers are not computed twice. None where nothing is predicted (docs/plan.md). `device` is the kind of GPU if
    the profile names none.
    """
    planned = _planned(recipe, section, size, is_certain=is_certain)
    if isinstance(planned, PlannedSampling):
        assert isinstance(section, AlignRecipe)
        gathers, _ = answer_weights_of(recipe, section, size, device, is_certain=is_certain)
        return memory_of_sampling(replace(planned, gathers=gathers))
    return memory_of_steps(planned, reads_first=estimates_divergence(section)) if planned else None


def beside_steps_needed_for(
    recipe: Recipe, section: SftRecipe | RewardRecipe | AlignRecipe, size: Size
) -> tuple[str, Needed] | None:
    """Return when, before or after its steps, a post-training needs the most GPU memory, and its bytes by purpose.

    None where nothing is predicted, as of its steps.
    """
    planned, beside = _planned(recipe, section, size), {}
    if isinstance(planned, PlannedSampling):
        planned, beside = planned.policy, models_beside(planned)
    if planned is None:
        return None
    moments = memory_beside_steps(planned, _learns_from(section)).items()
    return max(((name, parts | beside) for name, parts in moments), key=lambda one: sum(one[1].values()), default=None)


def _planned(
    recipe: Recipe, section: SftRecipe | RewardRecipe | AlignRecipe, size: Size, *, is_certain: bool = False
) -> PlannedTuning | PlannedSampling | None:
    """Return what the memory forecast of a post-training on GPUs reads of its section; None if it is not predicted."""
    shard, learns_from = shared_by(section, size), _learns_from(section)
    is_own = not isinstance(section, AlignRecipe) or section.method in method_names()
    if not is_own or not size.gpus_per_node:
        return None
    if learns_from == "samples":
        return planned_sampling(_shape(recipe), section, size, shard=shard, is_certain=is_certain)
    return planned_tuning(
        _shape(recipe),
        section,
        size,
        shard=shard,
        sequences=2 if learns_from == "pairs" else 1,
        is_reward=isinstance(section, RewardRecipe),
        is_certain=is_certain,
        reads_more=estimates_divergence(section),
    )


def answer_weights_of(
    recipe: Recipe, section: AlignRecipe, size: Size, device: Device | None = None, *, is_certain: bool = False
) -> tuple[bool, str]:
    """Return whether GRPO or RLOO gathers weights once for a step's answers, and why, as the job will decide it.

    `device` is the kind of GPU if the profile names none. If `is_certain`, only what the profile says counts.
    """
    shard, room = shared_by(section, size), None if is_certain else _room_of_gpu(size, device)
    sampling = planned_sampling(_shape(recipe), section, size, shard=shard)
    needed = memory_of_gathered_sampling(sampling) if sampling else None
    return gathering(size.answer_weights, shard=shard, needed=needed, room=room)


def _room_of_gpu(size: Size, device: Device | None) -> int | None:
    """Return the memory of a process's GPU; None if there is none, or its kind is not known."""
    if not size.gpus_per_node:
        return None
    gpu = device_of(size.gpu) if size.gpu else device
    return gpu.memory_bytes if gpu else None


def estimates_divergence(section: SftRecipe | RewardRecipe | AlignRecipe) -> bool:
    """Whether a section learns from single answers by a loss that reads answers behind other prompts too (KTO)."""
    return _learns_from(section) == "answers" and section.trl.get("loss_type", DIVERGES) == DIVERGES


def _learns_from(section: SftRecipe | RewardRecipe | AlignRecipe) -> str:
    if isinstance(section, AlignRecipe):
        return section.declared.learns_from
    return "pairs" if isinstance(section, RewardRecipe) else "conversations"


def scoring_needed_for(
    recipe: Recipe, asset: str, size: Size, *, is_certain: bool = False, device: Device | None = None
) -> Needed | None:
    """Return the predicted GPU memory of a process that scores models, in bytes by purpose; None without GPUs.

    The rows fill the model's length, or the prompts and answers of alignment theirs; if `is_certain`, they have one
    token, and there is one of them. `device` is the kind of GPU if the profile names none.
    """
    if not size.gpus_per_node:
        return None
    gathers, _ = scoring_weights_of(recipe, asset, size, device, is_certain=is_certain)
    moments_of = _moments_of_judging if asset == "alignment_rewards" else _moments_of_scoring
    moments = list(moments_of(recipe, size, gathers=gathers, is_certain=is_certain))
    return {name: part for name, part in max(moments, key=lambda parts: sum(parts.values())).items() if part}


def scoring_weights_of(
    recipe: Recipe, asset: str, size: Size, device: Device | None = None, *, is_certain: bool = False
) -> tuple[bool, str]:
    """Return whether a scored model's weights are gathered once for all its answers, not for each token, and why.

    The job decides it in the same way.
    """
    shape, room = _shape(recipe), None if is_certain else _room_of_gpu(size, device)
    models = JUDGED_MODELS if asset == "alignment_rewards" else 1
    needed = memory_of_answers(shape, shard=size.shard, rows=recipe.evaluation.batch_size, models=models)
    return gathering(size.answer_weights, shard=size.shard, needed=needed, room=room)


def _moments_of_scoring(recipe: Recipe, size: Size, *, gathers: bool, is_certain: bool) -> Iterator[Needed]:
    """Yield what is needed to score multiple choice, to answer, and to read whole windows of text."""
    moments = memory_without_steps(_scored(recipe, size, is_certain=is_certain))
    yield moments["scores"]
    yield moments["answers with all weights gathered" if gathers else "answers"]
    if recipe.evaluation.held_out_limit != 0 or recipe.evaluation.outside_text is not None:
        yield moments["whole windows"]


def _moments_of_judging(recipe: Recipe, size: Size, *, gathers: bool, is_certain: bool) -> Iterator[Needed]:
    """Yield what is needed for answers to alignment prompts, for their rewards, and before and after alignment.

    The last needs the SFT model, the aligned one and the reward model together, and all logits of a pass.
    """
    alone, align = _scored(recipe, size, is_certain=is_certain), recipe.align
    if recipe.evaluation.alignment_prompts:
        yield memory_without_steps(alone)["answers with all weights gathered" if gathers else "answers"]
    yield memory_without_steps(replace(alone, is_reward=True))["rewards"]
    length = 1 if is_certain else align.max_length + align.max_new_tokens
    rows = 1 if is_certain else JUDGED_PROMPTS
    yield memory_before_and_after(replace(alone, positions=rows * length, longest=length), gathers=gathers)


def _scored(recipe: Recipe, size: Size, *, is_certain: bool) -> PlannedTuning:
    """Return a batch of rows of the model's length for the forecast; if `is_certain`, one row with one token."""
    shape, rows = _shape(recipe), recipe.evaluation.batch_size
    return PlannedTuning(
        shape=shape,
        shard=size.shard,
        positions=1 if is_certain else rows * shape.max_length,
        longest=1 if is_certain else shape.max_length,
    )


def shared_by(section: SftRecipe | RewardRecipe | AlignRecipe, size: Size) -> int:
    """Return the number of processes that share the model of a post-training; 1 if each has the whole of it."""
    return size.shard if section.can_be_spread else 1


def _check_shard(size: Size) -> None:
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

"""What `pedigree plan` tells of post-training and scoring: examples, operations, memory, time and disk.

Time on GPUs is predicted for a known kind of GPU (training/posttrain/durations.py) once it is known how many examples
there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from assets.amounts import Amount, Amounts
from assets.capacity import (
    answer_weights_of,
    beside_steps_needed_for,
    estimates_divergence,
    needed_for,
    scoring,
    scoring_needed_for,
    scoring_weights_of,
    shared_by,
    steps_needed_for,
    tuned,
)
from assets.first_run import FirstRun
from assets.status import Cell, Comparison, last_made
from resources.compute.size import Size
from resources.profile import Profile
from training.artifact import Artifact
from training.generate.pass_rows import SAMPLE_ROWS, rows_in_pass, rows_of_length
from training.posttrain.align.method import method_names
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.durations import (
    Drawing,
    Gpus,
    Read,
    TuningWork,
    time_of_answering,
    time_of_reading,
    time_of_tuning,
)
from training.posttrain.planned import MOMENTS, OPTIM, adapters_of, computes_twice
from training.posttrain.reward.settings import RewardRecipe
from training.posttrain.scoring import LEARNED, SCALE_PAIRS
from training.posttrain.sft.settings import SftRecipe
from training.pretrain.devices import Device, device_of
from training.pretrain.memory import Needed, machine_memory
from training.pretrain.models.account import FP32
from training.pretrain.models.shape import ModelConfig
from training.recipe import Recipe
from training.scopes import has_assets
from training.settings.evaluation import JUDGED_PROMPTS, TASK_NEW_TOKENS

Section = SftRecipe | RewardRecipe | AlignRecipe

NOT_MADE = "not known until the examples are made"
NOT_INDEXED = "not known until the index of the exams and the tokens of the corpus are made"
NO_GPU = "no known kind of GPU (--gpu)"
OUTSIDE = "not known of a method from outside"
DRAWS_OTHERWISE = {"num_iterations", "steps_per_generation", "generation_batch_size"}  # fields of TRL
KEPT_CHECKPOINTS = 2  # of the trainer
MODELS = 3  # whose answers the reward model reads: base, SFT and aligned


@dataclass(frozen=True, kw_only=True)
class KnownWork:
    """What a post-training computes, in how many examples; or `unknown`: why that is not known."""

    unknown: str = ""
    work: TuningWork | None = None
    examples: int | None = None
    said: str = ""


def tunings(
    comparison: Comparison, profile: Profile, device: Device | None, mfu: float, rates: FirstRun
) -> Iterator[dict[str, Any]]:
    """Yield the plan of each post-training stage: its size, operations, memory, time and disk.

    `memory` is what is certainly needed: weights, gradients, optimizer, and models beside it. `steps` is what its steps
    need in all, where this is predicted, and `beside_steps` the most that is needed before or after them.
    `flops_per_token` are of a training on one token of a row of `max_length`, `flops` are all operations.
    """
    recipe = comparison.recipe
    shape, amounts = _shape(recipe), Amounts(recipe, rates)
    for asset, section, parameters, beside in tuned(recipe):
        size, cell = profile.size_for(asset), _cell(comparison, asset)
        gpu = _gpu(size, device)
        made = last_made(cell, comparison.root) if cell else None
        needed = needed_for(section, parameters, beside, size)
        steps = steps_needed_for(recipe, section, size, device=gpu)
        moment, beside_steps = beside_steps_needed_for(recipe, section, size) or ("", {})
        peak = max(sum(steps.values()), sum(beside_steps.values())) if steps else None
        gathers, why = _answer_weights(recipe, section, size, gpu)
        found = _work_of(recipe, asset, section, size, amounts)
        processes = size.nodes * size.processes
        yield {
            "asset": asset,
            "partition": recipe.name,
            "parameters": parameters,
            "flops_per_token": shape.training_flops_per_token(section.max_length),
            "examples": found.examples,
            "tokens": round(found.work.read.tokens) if found.work else None,
            "optimizer_steps": found.work.steps if found.work else None,
            "flops": found.work.flops(processes) if found.work else None,
            "memory": needed,
            "least_bytes": sum(needed.values()),
            "steps": steps,
            "steps_bytes": sum(steps.values()) if steps else None,
            "beside_steps": beside_steps,
            "beside_steps_bytes": sum(beside_steps.values()),
            "beside_steps_when": moment,
            **_in_room(peak, size, device),
            "computes_twice": computes_twice(section),
            "answer_weights": why,
            "measured_peak_bytes": _peak(made, size),
            "time": _tuning_time(found, section, size, gpu, mfu, cell, made, rates, gathers=gathers),
            "disk": _disk(parameters, adapters_of(shape, section), section),
            "checkpoint_seconds": size.checkpoint_seconds,
            "processes": processes,
            "gpu": gpu.name if gpu else None,
        }


def _answer_weights(recipe: Recipe, section: Section, size: Size, gpu: Device | None) -> tuple[bool, str]:
    """Return whether weights stay gathered while answers are drawn, and why; nothing if none are drawn or shared."""
    if not isinstance(section, AlignRecipe) or section.declared.learns_from != "samples":
        return False, ""
    return answer_weights_of(recipe, section, size, gpu)


def _work_of(recipe: Recipe, asset: str, section: Section, size: Size, amounts: Amounts) -> KnownWork:
    """Return what a post-training computes."""
    shape, processes = _shape(recipe), size.nodes * size.processes
    if isinstance(section, AlignRecipe) and section.method not in method_names():
        return KnownWork(unknown=OUTSIDE)
    if isinstance(section, AlignRecipe) and section.declared.learns_from == "samples":
        return _sampled(recipe, section, size, amounts)
    is_sft = isinstance(section, SftRecipe)
    rows = (amounts.conversations if is_sft else amounts.pairs)(section.max_length)
    if rows is None:
        return KnownWork(unknown=NOT_MADE)
    learns_from = section.declared.learns_from if isinstance(section, AlignRecipe) else "pairs"
    sequences = 1 if is_sft else 2
    in_batch = 1 if learns_from == "answers" else sequences  # sequences of one example of a batch
    examples = round(section.epochs * rows.number * sequences / in_batch)
    steps = max(1, ceil(examples / section.batch_size))
    share = max(1, section.batch_size // processes)
    row_tokens = in_batch * section.max_length
    of_a_pass = rows_in_pass(share, micro_batch_tokens=size.micro_batch_tokens, row_tokens=row_tokens)
    is_reward = isinstance(section, RewardRecipe)
    read = Read(shape=shape, number=examples * in_batch, length=rows.length, is_reward=is_reward)
    estimates = estimates_divergence(section)
    before = (2 if estimates else 1) if isinstance(section, AlignRecipe) else 0
    return KnownWork(
        examples=examples,
        said=f"{examples:,} examples of {in_batch * rows.length:,.0f} tokens",
        work=TuningWork(
            read=read,
            steps=steps,
            passes=share // of_a_pass,
            recomputes=computes_twice(section),
            adapters=adapters_of(shape, section),
            is_fp32=section.precision == "fp32",
            in_steps=int(estimates),
            before=before,
            checks=tuple(_checks(read, section, rows, amounts)),
        ),
    )


def _checks(read: Read, section: Section, rows: Amount, amounts: Amounts) -> Iterator[Read]:
    """Yield what every process reads in fp32 before and after its steps."""
    if isinstance(section, SftRecipe):
        yield replace(read, number=2 * min(SAMPLE_ROWS, rows.number))  # before and after
    elif isinstance(section, RewardRecipe) and (held_out := amounts.held_out_pairs(section.max_length)):
        yield replace(read, number=2 * held_out.number, length=held_out.length)


def _sampled(recipe: Recipe, section: AlignRecipe, size: Size, amounts: Amounts) -> KnownWork:
    """Return what a method that samples computes, with answers of the greatest length."""
    shape, processes = _shape(recipe), size.nodes * size.processes
    prompts = amounts.prompts(section.max_length - section.max_new_tokens)
    if DRAWS_OTHERWISE & section.trl.keys():
        return KnownWork(unknown="not predicted with these fields of TRL")
    if prompts is None:
        return KnownWork(unknown=NOT_MADE)
    in_step = section.batch_size // section.num_generations
    steps = section.max_steps or max(in_step, round(section.epochs * prompts.number)) // in_step
    share = max(1, section.batch_size // processes)
    of_a_pass = rows_in_pass(share, micro_batch_tokens=size.micro_batch_tokens, row_tokens=section.max_length)
    is_fp32, answers = section.precision == "fp32", steps * section.batch_size
    drawn = Drawing(
        shape=shape,
        number=section.batch_size,
        prompt=prompts.length,
        new=section.max_new_tokens,
        is_fp32=is_fp32,
    )
    has_judge = LEARNED in section.reward_weights
    known = amounts.pairs(section.max_length) if has_judge else None
    scale = (
        Read(shape=shape, number=2 * min(SCALE_PAIRS, known.number), length=known.length, is_reward=True)
        if known
        else None
    )
    return KnownWork(
        examples=answers,
        said=f"{answers:,} answers of {section.max_new_tokens} tokens after prompts of {prompts.length:,.0f}",
        work=TuningWork(
            read=replace(drawn.whole, number=answers),
            steps=steps,
            passes=share // of_a_pass,
            recomputes=computes_twice(section),
            adapters=adapters_of(shape, section),
            is_fp32=is_fp32,
            in_steps=int(bool(section.beta)),
            checks=(scale,) if scale else (),
            drawn=drawn,
            has_judge=has_judge,
        ),
    )


def _tuning_time(
    found: KnownWork,
    section: Section,
    size: Size,
    gpu: Device | None,
    mfu: float,
    cell: Cell | None,
    made: Artifact | None,
    rates: FirstRun,
    *,
    gathers: bool,
) -> dict[str, Any]:
    """Return seconds, where they come from, the seconds by what is done, and those that the last training took."""
    if found.work is None or gpu is None:
        return _time(None, found.unknown or NO_GPU, size, cell, made, rates)
    parts = time_of_tuning(found.work, _place(size, gpu, mfu, shared_by(section, size), gathers=gathers))
    basis = f"predicted for {gpu.name} at {mfu:.0%} MFU, {found.said}"
    return _time(parts, basis, size, cell, made, rates)


def _time(
    parts: dict[str, float] | None, basis: str, size: Size, cell: Cell | None, made: Artifact | None, rates: FirstRun
) -> dict[str, Any]:
    seconds = sum(parts.values()) if parts else None
    if seconds is None and not size.gpus_per_node and cell:
        seconds = rates.seconds(cell)
        basis = "rate of another machine" if seconds is not None else basis if basis != NO_GPU else "no rate"
    cost = made.record.get("cost", {}) if made else {}
    return {"seconds": seconds, "basis": basis, "parts": parts or {}, "measured_seconds": cost.get("wall_seconds")}


def _disk(parameters: int, adapters: int, section: Section) -> Needed:
    """Return the bytes on disk at one time: checkpoints, of which one is half written, and the export.

    A checkpoint has the optimizer's state; one of adapters has no weights of the model.
    """
    trained = adapters or parameters
    kept = KEPT_CHECKPOINTS + 1
    numbers = 1 + MOMENTS.get(section.trl.get("optim", OPTIM), 0)  # the states of others are not counted
    return {
        f"{kept} checkpoints": kept * FP32 * trained * numbers,
        "export": FP32 * parameters,
        **({"adapters": FP32 * adapters} if adapters else {}),
    }


# Scoring


def scorings(
    comparison: Comparison, profile: Profile, device: Device | None, mfu: float, rates: FirstRun
) -> Iterator[dict[str, Any]]:
    """Yield operations, memory and time of each stage that scores models; `memory` is None without GPUs."""
    recipe = comparison.recipe
    shape, amounts = _shape(recipe), Amounts(recipe, rates)
    for asset in scoring(recipe):
        size, cell, gpu = profile.size_for(asset), _cell(comparison, asset), _gpu(profile.size_for(asset), device)
        made = last_made(cell, comparison.root) if cell else None
        needed = scoring_needed_for(recipe, asset, size, device=gpu)
        gathers, why = scoring_weights_of(recipe, asset, size, gpu)
        most = sum(needed.values()) if needed else None
        said, reads, asked = _scored(recipe, asset, amounts)
        parts = None
        if reads and gpu:
            place = _place(size, gpu, mfu, size.shard, gathers=gathers)
            parts = {
                "reading": sum(time_of_reading(one, place, batch_size=rows) for one, rows in reads),
                "answers": sum(time_of_answering(one, place, batch_size=rows) for one, rows in asked),
            }
        basis = f"predicted for {gpu.name} at {mfu:.0%} MFU, {said}" if reads and gpu else NO_GPU if reads else said
        flops = sum(one.forward for one, _ in reads) + sum(one.flops for one, _ in asked)
        yield {
            "asset": asset,
            "partition": recipe.name,
            "parameters": shape.parameter_count,
            "flops_per_token": shape.training_flops_per_token(shape.max_length) / 3,  # without a backward pass
            "flops": flops or None,
            "memory": needed,
            "peak_bytes": most,
            "answer_weights": why,
            **_in_room(most, size, device),
            "measured_peak_bytes": _peak(made, size),
            "time": _time(parts, basis, size, cell, made, rates),
            "processes": size.nodes * size.processes,
            "gpu": gpu.name if gpu else None,
        }


Batched = list[tuple[Any, int]]


def _scored(recipe: Recipe, asset: str, amounts: Amounts) -> tuple[str, Batched, Batched]:
    """Return how much is scored in words, what is read, and what is answered, each with the rows of a batch."""
    shape = _shape(recipe)
    items = amounts.items(shape.max_length)
    if items is None:
        return NOT_INDEXED, [], []
    if asset == "alignment_rewards":
        chats = [items[suite.name] for suite in recipe.evaluation.suites if suite.kind == "chat"]
        return _judged(recipe, chats, amounts)
    texts = amounts.held_out_texts
    if texts is None:
        return NOT_INDEXED, [], []
    rows, models = recipe.evaluation.batch_size, 1 + sum(has_assets(recipe, scope) for scope in ("sft", "align"))
    reads: Batched = []
    asked: Batched = []
    for suite in recipe.evaluation.suites:
        number, length = models * items[suite.name].number, items[suite.name].length
        if suite.kind == "multiple_choice":
            reads.append((Read(shape=shape, number=number, length=length), rows))
        else:
            new = TASK_NEW_TOKENS if suite.is_task else suite.max_new_tokens
            drawn = Drawing(shape=shape, number=number, prompt=length, new=new, is_fp32=True)
            asked.append((drawn, rows_of_length(length + new, most_rows=rows)))
    if texts.number:
        reads.append((Read(shape=shape, number=models * texts.number, length=texts.length), rows))
    number = sum(one.number for one in items.values())
    return f"{number:,} items and {texts.number:,} texts, by {models} models", reads, asked


def _judged(recipe: Recipe, chats: list[Amount], amounts: Amounts) -> tuple[str, Batched, Batched]:
    """Return what the reward model and the models before and after alignment do (evaluation.held_out).

    The prompts are those of held-out pairs, 64 at most. Two models answer, and each reads the answers of
    one. `chats` are exams whose answers, by three models, the reward model reads too.
    """
    shape, align = _shape(recipe), recipe.align
    held_out = amounts.held_out_pairs(align.max_length)
    if held_out is None:
        return NOT_MADE, [], []
    prompts = min(JUDGED_PROMPTS, held_out.number)
    drawn = Drawing(shape=shape, number=prompts, prompt=held_out.length, new=align.max_new_tokens, is_fp32=True)
    rows = rows_of_length(drawn.whole.length, most_rows=JUDGED_PROMPTS)
    reads: Batched = [(replace(drawn.whole, is_reward=True), rows)] * 2 + [(drawn.whole, rows)] * 2
    batch = recipe.evaluation.batch_size
    reads += [
        (
            Read(shape=shape, number=MODELS * one.number, length=one.length, is_reward=True),
            rows_of_length(one.length, most_rows=batch),
        )
        for one in chats
    ]
    answers = MODELS * sum(one.number for one in chats)
    return f"{prompts} prompts, and {answers:,} answers to exams", reads, [(drawn, rows)] * 2


# Shared


def _shape(recipe: Recipe) -> ModelConfig:
    return recipe.model.shape(vocab_size=recipe.tokenizer.vocabulary)


def _cell(comparison: Comparison, asset: str) -> Cell | None:
    return next((cell for cell in comparison.cells.values() if cell.asset == asset), None)


def _gpu(size: Size, device: Device | None) -> Device | None:
    """Return the kind of GPU of a stage; None without GPUs, or if the kind is not known."""
    if not size.gpus_per_node:
        return None
    return device_of(size.gpu) if size.gpu else device


def _place(size: Size, gpu: Device, mfu: float, shard: int, *, gathers: bool) -> Gpus:
    processes = size.nodes * size.processes
    return Gpus(device=gpu, processes=processes, on_node=size.processes, shard=shard, mfu=mfu, gathers=gathers)


def _peak(made: Artifact | None, size: Size) -> int | None:
    """Return the peak memory of a process in bytes, measured when an asset was last made on CPUs; None if never."""
    return made.record.get("cost", {}).get("peak_memory_bytes") if made is not None and not size.gpus_per_node else None


def room(size: Size, gpu: Device | None) -> tuple[int | None, str]:
    """Return the bytes that a process may use, and of which memory; None if they are unknown."""
    if size.gpus_per_node:
        return (gpu.memory_bytes, f"an {gpu.name}") if gpu else (None, "the GPU, whose kind is not known")
    if size.backend == "local":
        total, where = machine_memory()
        return total // size.processes, where
    return (round(size.memory_gb * 2**30) // size.processes, "memory_gb") if size.memory_gb else (None, "the node")


def _in_room(most: int | None, size: Size, device: Device | None) -> dict[str, Any]:
    """Return the bytes that a process may use, of which memory, and whether so many fit; None where unknown."""
    known, where = room(size, device_of(size.gpu) if size.gpu else device)
    return {"room_bytes": known, "of": where, "fits": None if known is None or most is None else most <= known}

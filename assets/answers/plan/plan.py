"""What a recipe will take with a profile: time, node-hours, price, and memory, disk and operations of each model.

Times are those of earlier artifacts under the root, or follow from their rates; of training on a known kind of GPU they
are predicted without such, and on this machine's processors estimated from the rates of another machine. A number with
none of these is None. Each says where it comes from. Memory and operations are those of
`training.pretrain.capacity.needs`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from assets.answers.plan.capacity import (
    DEGREES,
    Section,
    answer_weights,
    check_fit,
    in_words,
    layouts,
    learns,
    pretrained,
    scored,
    scoring_of,
    shape_of,
    trainings_of,
    tuned,
    tuning_of,
)
from assets.answers.plan.chats import chat_work
from assets.answers.plan.given import told_of_tokens
from assets.answers.plan.goodput import Interruptions, goodput
from assets.answers.plan.measured import measured_scoring, measured_training, measured_tuning
from assets.state.cell import Cell, Comparison, last_made
from assets.state.chain import CHAIN
from assets.terminal.first_run import FirstRun
from assets.terminal.time_left import earlier_seconds
from resources.compute.size import Size
from resources.profile import Profile, ProfileError
from training.contract.artifact import Artifact
from training.contract.records import read_record
from training.contract.scopes import WHOLE
from training.order.batch_settings import BatchesRecipe
from training.posttrain.rows.sorting import INSTRUCTIONS_FILE, TRAIN_FILE
from training.posttrain.sft.settings import SftRecipe
from training.pretrain.capacity.devices import MFU, TUNING_MFU, Device, device_of, step_seconds
from training.pretrain.capacity.needs import (
    Needed,
    Pretraining,
    Tuning,
    disk_bytes,
    host_bytes,
    scoring_bytes,
    training_bytes,
    training_operations,
    tuning_bytes,
    tuning_operations,
    with_libraries,
)
from training.pretrain.capacity.room import machine_memory
from training.pretrain.models.account import FP32
from training.pretrain.models.shape import ModelConfig, ModelRecipe
from training.recipe.recipe import Recipe

KEPT_CHECKPOINTS = 2
SHOWN_LAYOUTS = 5
TOKEN_BYTES = 4  # of a file of rows: examples are not tokenized to be counted
# Where examples are, their file, and their number in the record.
EXAMPLES = {
    "conversations": ("instruction_data", INSTRUCTIONS_FILE, "conversations"),
    "pairs": ("preference_data", TRAIN_FILE, "train_pairs"),
}
# The plan that decides the number of tokens of a training with `tokens: auto`, by the training's asset.
PLAN_OF = {
    "base_model": "training_plan",
    "reference_model": "reference_plan",
    "long_context_model": "long_context_plan",
}


def plan(
    comparison: Comparison,
    profile: Profile,
    *,
    name: str,
    device: Device | None,
    mfu: float = MFU,
    tuning_mfu: float = TUNING_MFU,
    measures: bool = False,
    interruptions: Interruptions | None = None,
) -> dict[str, Any]:
    """Return what every asset of a recipe costs, and the arithmetic of every model that is trained or scored.

    `name` is the profile's name or path. `device` is the kind of GPU if the profile names none. `mfu` is that of
    pretraining, `tuning_mfu` that of post-training. `measures`: run the stages' code on tensors without content. With
    `interruptions` each pretraining on GPUs has its goodput, and alternatives.
    """
    recipe = comparison.recipe
    rates = FirstRun(recipe, comparison.root, profile.size_for)
    models = [
        *_trainings(comparison, profile, device, mfu, measures, interruptions),
        *_tunings(comparison, profile, device, tuning_mfu, rates, measures),
        *_scorings(comparison, profile, device, measures),
    ]
    predicted = {(one["asset"], one["partition"]): one["time"]["seconds"] for one in models}
    rows = []
    for cell in comparison.cells.values():
        rows.append(_asset(cell, comparison.root, profile, predicted, rates))
        for kept in (name for name, whole in WHOLE.items() if whole == cell.asset):
            predicted |= steps_again(comparison, kept, rows[-1]["seconds"])
    for row in rows:
        for one in models:
            if (row["asset"], row["partition"]) == (one["asset"], one["partition"]) and one["time"]["seconds"] is None:
                one["time"] |= {"seconds": row["seconds"], "basis": row["basis"] or one["time"]["basis"]}
    told = {"recipe": recipe.name, "profile": profile.name, "problem": _problem(recipe, name), "models": models}
    told["documents"] = told_of_tokens(recipe)
    return told | {"assets": rows, "totals": _totals(rows)}


def _problem(recipe: Recipe, profile: str) -> str:
    """Return why the profile cannot run the recipe; empty if no reason is known."""
    try:
        check_fit(recipe, profile)
    except ProfileError as error:
        return str(error)
    return ""


# Every asset


def _asset(
    cell: Cell, root: Path, profile: Profile, predicted: Mapping[tuple[str, str], float | None], rates: FirstRun
) -> dict[str, Any]:
    """Return state, seconds, node-hours and price of one cell; of a made cell, what it took."""
    size = profile.size_for(cell.asset)
    is_again = cell.asset in WHOLE and cell.state != "made"  # a step that was kept on the way says nothing of it
    made = None if is_again else last_made(cell, root)
    basis = "measured" if cell.state == "made" else "earlier artifact"
    seconds = None if is_again else earlier_seconds(cell, root)
    if seconds is None:
        seconds, basis = predicted.get(cell.key), "predicted"
    if seconds is None:
        seconds, basis = rates.seconds(cell), "rate of another machine"
    node_hours = _node_hours(made, size, seconds)
    return {
        "asset": cell.asset,
        "partition": cell.partition,
        "state": cell.state,
        "basis": None if seconds is None else basis,
        "seconds": None if seconds is None else round(seconds, 3),
        "nodes": size.nodes,
        "node_hours": None if node_hours is None else round(node_hours, 6),
        "gpu_hours": None if node_hours is None else round(node_hours * size.gpus_per_node, 6),
        "least": bool(made is not None and made.record["cost"].get("least")),
        "price": None if node_hours is None or not size.price_per_hour else round(node_hours * size.price_per_hour, 6),
        "peak_memory_bytes": made.record.get("cost", {}).get("peak_memory_bytes") if made is not None else None,
    }


def steps_again(comparison: Comparison, kept: str, seconds: float | None) -> dict[tuple[str, str], float | None]:
    """Return the seconds of each missing kept step of an asset, given those of its whole training.

    They are none on the way of that training. Once it is made, one training up to the last missing step makes all that
    it passes; it goes on from the nearest kept state.
    """
    whole = comparison.cells[WHOLE[kept], comparison.recipe.name]
    missing = [cell for cell in comparison.cells.values() if cell.asset == kept and cell.state != "made"]
    found: dict[tuple[str, str], float | None] = {cell.key: 0.0 for cell in missing}
    passed = math.inf
    for cell in missing if whole.state == "made" else ():  # the last step is listed first
        if (step := cell.kept_at) <= passed:
            passed = comparison.step_before(cell)
            found[cell.key] = None if seconds is None else seconds * (step - passed) / comparison.length_of(cell)
    return found


def _node_hours(made: Artifact | None, size: Size, seconds: float | None) -> float | None:
    recorded = made.record.get("cost", {}).get("node_hours") if made is not None else None
    if recorded is not None:
        return recorded
    return None if seconds is None else seconds * (size.nodes + size.spare_nodes) / 3600


def _totals(assets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over the assets that are to be made, and the names of those whose time is not known."""
    to_make = [one for one in assets if one["state"] != "made"]
    known = [one for one in to_make if one["seconds"] is not None]
    sums = {
        name: round(sum(one[name] or 0.0 for one in known), 6)
        for name in ("seconds", "node_hours", "gpu_hours", "price")
    }
    unknown = sorted({one["asset"] for one in to_make if one["seconds"] is None})
    least = any(one["least"] for one in known)
    return {"to_make": len(to_make), **sums, "least": least, "not_known": unknown}


# Every model


def _model(
    cell: Cell,
    shape: ModelConfig,
    size: Size,
    device: Device | None,
    root: Path,
    moments: dict[str, Needed],
    *,
    length: int,
    **more: Any,
) -> dict[str, Any]:
    """Return what is told of every model: its size, and what a process needs at each moment beside what it has."""
    gpu = _gpu(size, device)
    room, where = _room(size, gpu)
    peak_at = max(moments, key=lambda name: sum(moments[name].values()), default="")
    peak = sum(moments[peak_at].values()) if moments else None
    made = last_made(cell, root)
    cost = made.record.get("cost", {}) if made is not None else {}
    had = cost.get("peak_memory_bytes") if not size.gpus_per_node else None
    return (
        {
            "asset": cell.asset,
            "partition": cell.partition,
            "parameters": shape.parameter_count,
            "active_parameters": shape.active_parameter_count,
            "flops_per_token": shape.training_flops_per_token(length),
            "tokens": None,
            "steps": None,
            "flops": None,
            "processes": size.nodes * size.processes,
            "gpu": gpu.name if gpu else None,
            "memory": {
                "moments": moments,
                "peak_at": peak_at,
                "peak_bytes": peak,
                "room_bytes": room,
                "of": where,
                "fits": None if room is None or peak is None else peak <= room,
                "measured_peak_bytes": had,
            },
            "answer_weights": "",
            "disk": {},
            "checkpoint_seconds": size.checkpoint_seconds,
            "layouts": [],
            "goodput": {},
            "chat": {},
            "measured": {},
            "not_measured": "",
        }
        | more
        | {"time": more["time"] | {"measured_seconds": cost.get("wall_seconds")}}
    )


def _gpu(size: Size, device: Device | None) -> Device | None:
    """Return the kind of GPU of a stage; None without GPUs, or if the kind is not known."""
    if not size.gpus_per_node:
        return None
    return device_of(size.gpu) if size.gpu else device


def _room(size: Size, gpu: Device | None) -> tuple[int | None, str]:
    """Return the bytes that a process may use, and of which memory; None if they are unknown."""
    if size.gpus_per_node:
        return (gpu.memory_bytes, f"an {gpu.name}") if gpu else (None, "the GPU, whose kind is not known")
    if size.backend == "local":
        total, where = machine_memory()
        return total // size.processes, where
    return (round(size.memory_gb * 2**30) // size.processes, "memory_gb") if size.memory_gb else (None, "the node")


def _unknown(why: str) -> dict[str, Any]:
    return {"seconds": None, "step_seconds": None, "basis": why}


# Pretraining


def _trainings(
    comparison: Comparison,
    profile: Profile,
    device: Device | None,
    mfu: float,
    measures: bool,
    interruptions: Interruptions | None,
) -> Iterator[dict[str, Any]]:
    recipes = {one.name: comparison.recipe.on_rung(one.name) for one in comparison.recipe.ladder.rungs}
    for asset, recipe in pretrained(comparison.recipe):
        for cell in (one for one in comparison.cells.values() if one.asset == asset):
            if asset != "ladder_model" or recipes[cell.part] == recipe:
                yield _training(cell, recipe, comparison, profile.size_for(asset), device, mfu, measures, interruptions)


def _training(
    cell: Cell,
    recipe: Recipe,
    comparison: Comparison,
    size: Size,
    device: Device | None,
    mfu: float,
    measures: bool,
    interruptions: Interruptions | None,
) -> dict[str, Any]:
    batches, trainings = _batches(cell, recipe, comparison), trainings_of(recipe)
    gpu, on_gpu, shape = _gpu(size, device), size.gpus_per_node > 0, shape_of(recipe)
    try:
        told = [(training_bytes(one, size, on_gpu=on_gpu), one) for one in trainings]
        moments, trained = max(told, key=lambda one: max(sum(parts.values()) for parts in one[0].values()))
    except ValueError:  # the layout does not divide the batch; `problem` says so
        moments, trained = {}, trainings[-1]
    flops = training_operations(shape, batches.phases if batches else ())
    fitting = layouts(trained, size, gpu, mfu=mfu)[:SHOWN_LAYOUTS] if gpu else []
    steps = len(recipe.pretrain.kept_steps)
    held, why_not = measured_training(recipe, size) if measures and moments else ({}, "")
    model = _model(
        cell,
        shape,
        size,
        device,
        comparison.root,
        moments,
        length=recipe.pretrain.sequence_length,
        tokens=batches.step_tokens if batches else None,
        steps=batches.steps if batches else None,
        flops=flops or None,
        time=_training_time(cell, trainings, batches, size, gpu, mfu, flops, comparison),
        disk=disk_bytes(
            shape,
            recipe.pretrain,
            kept=KEPT_CHECKPOINTS,
            steps=steps,
            states=steps * recipe.pretrain.keep.optimizer,
        ),
        layouts=[_layout(*fit) for fit in fitting],
        measured=held,
        not_measured=why_not,
    )
    model["memory"]["host"] = host_bytes(trained, size) if on_gpu and moments else {}
    if interruptions and gpu and batches:
        phases = _phases(trainings, batches)
        model["goodput"] = goodput(phases, flops, size, gpu, interruptions, mfu=mfu)
    return model


def _phases(trainings: list[Pretraining], batches: BatchesRecipe) -> list[Pretraining]:
    """Return a training for each phase of the batches."""
    return [replace(trainings[0], phase=phase) for phase in batches.phases]


def _layout(size: Size, needed: Needed, seconds: float) -> dict[str, Any]:
    names = (*DEGREES, "zero_stage", "gather_dtype", "micro_batch_tokens", "recompute", "nodes", "processes")
    fields = {name: getattr(size, name) for name in names}
    return fields | {"in_words": in_words(size), "peak_bytes": sum(needed.values()), "step_seconds": seconds}


def _batches(cell: Cell, recipe: Recipe, comparison: Comparison) -> BatchesRecipe | None:
    """Return the settings of rows and batches; None if the plan that decides the number of tokens is not made."""
    batches = recipe.pretrain.batches
    if batches.tokens != "auto":
        return batches
    key = next((key for key in cell.inputs if key[0] == PLAN_OF.get(cell.asset, "ladder_plan")), None)
    made = comparison.cells[key].artifact if key is not None else None
    tokens = made.record["metrics"].get("tokens") if made is not None else None
    return batches.of_tokens(int(tokens)) if tokens else None


def _training_time(
    cell: Cell,
    trainings: list[Pretraining],
    batches: BatchesRecipe | None,
    size: Size,
    gpu: Device | None,
    mfu: float,
    flops: float,
    comparison: Comparison,
) -> dict[str, Any]:
    """Return the seconds of a training and of a step, and where they come from.

    In this order: this training's own rate, the rate of another training under the root in operations per second, the
    arithmetic for a known GPU. What is read of the state of a training that it continues takes none.
    """
    steps = batches.steps if batches else 0
    left = 1 - comparison.step_before(cell) / steps if steps and cell.asset == "base_model" else 1
    for one in (last_made(cell, comparison.root), *_earlier_trainings(comparison)):
        rate = _flops_per_second(one) if one is not None else None
        if one is not None and rate and flops and _same_machines(one, size):
            basis = f"rate of {one.record['asset']} {one.fingerprint[:12]}"
            return {"seconds": left * flops / rate, "step_seconds": flops / rate / steps, "basis": basis}
    if not (gpu and batches):
        return _unknown("no earlier training on such a machine, and no known kind of GPU (--gpu)")
    try:
        of_phases = _phases(trainings, batches)
        seconds = sum(one.phase.steps * step_seconds(one, size, gpu, mfu=mfu) for one in of_phases)
    except ValueError:
        return _unknown("the layout does not divide the batch")
    basis = f"predicted for {gpu.name} at {mfu:.0%} MFU"
    return {"seconds": left * seconds, "step_seconds": seconds / steps, "basis": basis}


def _earlier_trainings(comparison: Comparison) -> list[Artifact]:
    """Return the last models that the recipe's pretraining made, the base model first."""
    cells = [one for one in comparison.cells.values() if CHAIN[one.asset].stage.name == "pretrain"]
    return [made for cell in cells if (made := last_made(cell, comparison.root)) is not None]


def _flops_per_second(made: Artifact) -> float | None:
    """Return the model operations per second of a training, from its record."""
    metrics, settings = made.record["metrics"], made.record["settings"]
    rate, parameters = metrics.get("tokens_per_second"), metrics.get("parameters")
    if not rate or not parameters:
        return None
    # The vocabulary follows from the number of parameters.
    model = read_record(ModelRecipe, settings["model"])
    a_token = model.width * (1 if model.tied_embeddings else 2)
    words = 1 + (int(parameters) - model.shape(vocab_size=1).parameter_count) // a_token
    return rate * model.shape(vocab_size=words).training_flops_per_token(settings["pretrain"]["sequence_length"])


def _same_machines(made: Artifact, size: Size) -> bool:
    """Whether a training ran on the same kind of device and as many processes as the profile says."""
    notes = made.record.get("notes", {})
    device = "cuda" if size.gpus_per_node else "cpu"
    return notes.get("device") == device and notes.get("processes") == size.nodes * size.processes


# Post-training and scoring


def _tunings(
    comparison: Comparison, profile: Profile, device: Device | None, mfu: float, rates: FirstRun, measures: bool
) -> Iterator[dict[str, Any]]:
    recipe = comparison.recipe
    for asset, section in tuned(recipe):
        size, cell = profile.size_for(asset), _cell(comparison, asset)
        planned, gpu, gathers, why = tuning_of(recipe, section, size), _gpu(size, device), False, ""
        if planned.drawn:
            gathers, why = answer_weights(planned, tuning_bytes(planned, gathers=True)["answers"], size, device)
        work = _examples(recipe, asset, section, planned, rates)
        held, why_not = measured_tuning(recipe, asset, section, size) if measures else ({}, "")
        yield _model(
            cell,
            planned.shape,
            size,
            device,
            comparison.root,
            with_libraries(tuning_bytes(planned, gathers=gathers), on_gpu=bool(size.gpus_per_node)),
            length=section.max_length,
            parameters=planned.parameters,
            **work,
            time=_tuning_time(work["flops"], section, size, gpu, mfu),
            answer_weights=why,
            disk=_disk(planned),
            measured=held,
            not_measured=why_not,
        )


def _examples(recipe: Recipe, asset: str, section: Section, planned: Tuning, rates: FirstRun) -> dict[str, Any]:
    """Return examples, steps, tokens and operations; None as long as the examples are not made, or are sampled."""
    is_sft = isinstance(section, SftRecipe)
    source, file, counted = EXAMPLES["conversations" if is_sft else "pairs"]
    number = rates.record(source, recipe.name).get("metrics", {}).get(counted)
    folder = rates.folder(source, recipe.name)
    if not number or folder is None or not (folder / file).is_file() or planned.drawn:
        return {"examples": None, "steps": None, "tokens": None, "flops": None}
    sequences = section.epochs * number * (1 if is_sft else 2)  # a pair has two answers
    most = sequences * section.max_length
    tokens = min(most, section.epochs * (folder / file).stat().st_size / TOKEN_BYTES)
    examples = round(sequences if is_sft or learns(section) == "answers" else sequences / 2)
    length = max(1, round(tokens / sequences))
    flops = tuning_operations(planned, tokens=tokens, length=length, has_reference=asset == "aligned_model")
    steps = max(1, ceil(examples / section.batch_size))
    return {"examples": examples, "steps": steps, "tokens": round(tokens), "flops": flops}


def _tuning_time(flops: float | None, section: Section, size: Size, gpu: Device | None, mfu: float) -> dict[str, Any]:
    if learns(section) == "samples":
        return _unknown("not predicted of answers that a model samples")
    if flops is None:
        return _unknown("not known until the examples are made")
    if gpu is None:
        return _unknown("no rate" if not size.gpus_per_node else "no known kind of GPU (--gpu)")
    peak = gpu.fp32_teraflops if section.precision == "fp32" else gpu.teraflops
    seconds = flops / (peak * 1e12 * mfu * size.nodes * size.processes)
    return {"seconds": seconds, "step_seconds": None, "basis": f"predicted for {gpu.name} at {mfu:.0%} MFU"}


def _disk(planned: Tuning) -> Needed:
    """Return the bytes on disk at one time: checkpoints, of which one is half written, and the export.

    A checkpoint has the optimizer's state; one of adapters has no weights of the model.
    """
    kept, trained = KEPT_CHECKPOINTS + 1, planned.adapters or planned.parameters
    adapters = {"adapters": FP32 * planned.adapters} if planned.adapters else {}
    checkpoints = {f"{kept} checkpoints": kept * FP32 * trained * (1 + planned.moments)}
    return checkpoints | {"export": FP32 * planned.parameters} | adapters


def _scorings(
    comparison: Comparison, profile: Profile, device: Device | None, measures: bool
) -> Iterator[dict[str, Any]]:
    recipe = comparison.recipe
    for asset in scored(recipe):
        size, cell = profile.size_for(asset), _cell(comparison, asset)
        planned = scoring_of(recipe, asset, size)
        gathers, why = answer_weights(planned, scoring_bytes(planned, gathers=True)["answers"], size, device)
        held, why_not = measured_scoring(recipe, asset, size, gathers=gathers) if measures else ({}, "")
        yield _model(
            cell,
            planned.shape,
            size,
            device,
            comparison.root,
            with_libraries(scoring_bytes(planned, gathers=gathers), on_gpu=bool(size.gpus_per_node)),
            length=planned.longest,
            time=_unknown("not predicted of scores; an earlier artifact tells it"),
            chat=chat_work(recipe, asset),
            answer_weights=why,
            measured=held,
            not_measured=why_not,
        )


def _cell(comparison: Comparison, asset: str) -> Cell:
    return next(cell for cell in comparison.cells.values() if cell.asset == asset)

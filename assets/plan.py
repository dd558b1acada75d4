"""What a recipe will take with a profile: time, node-hours, price, and the memory and layouts of its trainings.

Times are those of earlier artifacts under the root, or follow from their rates; for trainings on a known kind of GPU
without such, they are predicted, and on this machine's processors estimated from the rates of another machine. A number
with none of these is None. Each says where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from assets.capacity import check_fit, pretrained
from assets.chain import CHAIN
from assets.first_run import FirstRun
from assets.plan_tuned import room, scorings, tunings
from assets.status import Cell, Comparison, last_made
from assets.time_left import earlier_seconds
from resources.compute.size import Size
from resources.profile import Profile, ProfileError
from training.artifact import Artifact
from training.order.batch_settings import BatchesRecipe
from training.posttrain.durations import TUNING_MFU
from training.pretrain import forecast
from training.pretrain.devices import Device, device_of
from training.pretrain.disk import needed_on_disk
from training.pretrain.forecast import Layout, PlannedTraining
from training.pretrain.models.shape import ModelConfig, ModelRecipe
from training.recipe import Recipe
from training.records import read_record

KEPT_CHECKPOINTS = 2
SHOWN_LAYOUTS = 5
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
    mfu: float = forecast.MFU,
    tuning_mfu: float = TUNING_MFU,
) -> dict[str, Any]:
    """Return what every asset of a recipe costs, and the arithmetic of every model that the recipe trains.

    `name` is the profile's name or path. `device` is the kind of GPU if the profile names none. `mfu` is that of
    pretraining, `tuning_mfu` that of post-training and scoring.
    """
    rates = FirstRun(comparison.recipe, comparison.root, profile.size_for)
    told: dict[str, Any] = {
        "recipe": comparison.recipe.name,
        "profile": profile.name,
        "problem": _problem(comparison.recipe, name),
        "trainings": list(_trainings(comparison, profile, device, mfu)),
        "tunings": list(tunings(comparison, profile, device, tuning_mfu, rates)),
        "scorings": list(scorings(comparison, profile, device, tuning_mfu, rates)),
    }
    predicted = {(one["asset"], one["partition"]): one["time"]["seconds"] for one in told["trainings"]}
    on_gpus = [one for kind in ("tunings", "scorings") for one in told[kind] if one["gpu"]]
    predicted |= {(one["asset"], one["partition"]): one["time"]["seconds"] for one in on_gpus}
    told["assets"] = [_asset(cell, comparison.root, profile, predicted, rates) for cell in comparison.cells.values()]
    return told | {"totals": _totals(told["assets"])}


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
    made = last_made(cell, root)
    basis = "measured" if cell.state == "made" else "earlier artifact"
    seconds = earlier_seconds(cell, root)
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
        "price": None if node_hours is None or not size.price_per_hour else round(node_hours * size.price_per_hour, 6),
        "peak_memory_bytes": made.record.get("cost", {}).get("peak_memory_bytes") if made is not None else None,
    }


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
    return {"to_make": len(to_make), **sums, "not_known": unknown}


# Trainings


def _trainings(comparison: Comparison, profile: Profile, device: Device | None, mfu: float) -> Iterator[dict[str, Any]]:
    recipes = {one.name: comparison.recipe.on_rung(one.name) for one in comparison.recipe.ladder.rungs}
    for asset, recipe in pretrained(comparison.recipe):
        for cell in (one for one in comparison.cells.values() if one.asset == asset):
            if asset == "ladder_model" and recipes[cell.part] != recipe:
                continue
            yield _training(cell, recipe, comparison, profile.size_for(asset), device, mfu)


def _training(
    cell: Cell, recipe: Recipe, comparison: Comparison, size: Size, device: Device | None, mfu: float
) -> dict[str, Any]:
    """Return shape, operations, memory, time, disk and layouts of one model that pretraining makes."""
    shape = recipe.model.shape(vocab_size=recipe.tokenizer.vocabulary)
    batches = _batches(cell, recipe, comparison)
    layout = Layout.of(size)
    phases = (batches or recipe.pretrain.batches.of_tokens(recipe.pretrain.global_batch_tokens)).phases
    trained = max(
        (PlannedTraining(shape=shape, recipe=recipe.pretrain, phase=phase) for phase in phases),
        key=lambda one: _need(one, layout, on_gpu=size.gpus_per_node > 0),
    )
    tokens = batches.step_tokens if batches else None
    flops = sum(
        phase.steps * phase.global_batch_tokens * shape.training_flops_per_token(phase.sequence_length)
        for phase in (batches.phases if batches else ())
    )
    gpu = device_of(size.gpu) if size.gpu else device
    known, where = room(size, gpu)
    made = last_made(cell, comparison.root)
    measured = {"measured_seconds": made.record.get("cost", {}).get("wall_seconds") if made is not None else None}
    return {
        "asset": cell.asset,
        "partition": cell.partition,
        "parameters": shape.parameter_count,
        "active_parameters": shape.active_parameter_count,
        "flops_per_token": shape.training_flops_per_token(recipe.pretrain.sequence_length),
        "tokens": tokens,
        "steps": batches.steps if batches else None,
        "flops": flops or None,
        "layout": asdict(layout),
        "memory": _memory(trained, layout, size, known, where, made),
        "time": _time(trained, layout, size, gpu, mfu, batches, flops, made, comparison) | measured,
        "disk": needed_on_disk(shape, recipe.pretrain, kept=KEPT_CHECKPOINTS),
        "checkpoint_seconds": size.checkpoint_seconds,
        "layouts": _layouts(trained, layout, gpu, mfu) if size.gpus_per_node and gpu else [],
        "gpu": gpu.name if gpu and size.gpus_per_node else None,
    }


def _batches(cell: Cell, recipe: Recipe, comparison: Comparison) -> BatchesRecipe | None:
    """Return the settings of rows and batches; None if the plan that decides the number of tokens is not made."""
    batches = recipe.pretrain.batches
    if batches.tokens != "auto":
        return batches
    key = next((key for key in cell.inputs if key[0] == PLAN_OF.get(cell.asset, "ladder_plan")), None)
    made = comparison.cells[key].artifact if key is not None else None
    tokens = made.record["metrics"].get("tokens") if made is not None else None
    return batches.of_tokens(int(tokens)) if tokens else None


def _need(training: PlannedTraining, layout: Layout, *, on_gpu: bool) -> int:
    try:
        return forecast.peak(forecast.memory(training, layout, on_gpu=on_gpu))[1]
    except ValueError:  # the layout does not divide the batch; `problem` says so
        return 0


def _memory(
    training: PlannedTraining, layout: Layout, size: Size, room: int | None, where: str, made: Artifact | None
) -> dict[str, Any]:
    """Return the predicted bytes of a process at each moment, the peak, and the peak of the last training."""
    on_gpu = size.gpus_per_node > 0
    measured = made.record.get("cost", {}).get("peak_memory_bytes") if made is not None and not on_gpu else None
    try:
        moments = forecast.memory(training, layout, on_gpu=on_gpu)
    except ValueError as error:
        return {"problem": str(error), "moments": {}, "peak_bytes": None, "room_bytes": room, "of": where}
    moment, most = forecast.peak(moments)
    return {
        "problem": "",
        "moments": moments,
        "peak_at": moment,
        "peak_bytes": most,
        "room_bytes": room,
        "of": where,
        "fits": None if room is None else most <= room,
        "host": forecast.host_memory(training, layout) if on_gpu else {},
        "measured_peak_bytes": measured,
    }


def _time(
    training: PlannedTraining,
    layout: Layout,
    size: Size,
    gpu: Device | None,
    mfu: float,
    batches: BatchesRecipe | None,
    flops: float,
    made: Artifact | None,
    comparison: Comparison,
) -> dict[str, Any]:
    """Return the seconds of a training and of a step, and where they come from.

    In this order: this training's own rate, the rate of another training under the root in operations per second, the
    arithmetic for a known GPU.
    """
    steps = batches.steps if batches else 0
    rates = [one for one in (made, *_earlier_trainings(comparison)) if one is not None]
    for one in rates:
        rate = _flops_per_second(one)
        if rate and flops and _same_machines(one, size):
            seconds = flops / rate
            return {
                "seconds": seconds,
                "step_seconds": seconds / steps,
                "basis": f"rate of {one.record['asset']} {one.fingerprint[:12]}",
                "flops_per_second": rate,
            }
    unknown = {"seconds": None, "step_seconds": None, "basis": None, "flops_per_second": None}
    if not (size.gpus_per_node and gpu and batches):
        return unknown
    try:
        seconds = sum(
            phase.steps * forecast.step_time(replace(training, phase=phase), layout, gpu, mfu=mfu).seconds
            for phase in batches.phases
        )
    except ValueError:
        return unknown
    basis = f"predicted for {gpu.name} at {mfu:.0%} MFU"
    return {"seconds": seconds, "step_seconds": seconds / steps, "basis": basis, "flops_per_second": flops / seconds}


def _earlier_trainings(comparison: Comparison) -> list[Artifact]:
    """Return the last models that the recipe's pretraining made, the base model first."""
    cells = [one for one in comparison.cells.values() if CHAIN[one.asset].stage.name == "pretrain"]
    return [made for cell in cells if (made := last_made(cell, comparison.root)) is not None]


def _flops_per_second(made: Artifact) -> float | None:
    """Return the model operations per second of a training, from its record."""
    record = made.record
    rate, settings = record["metrics"].get("tokens_per_second"), record["settings"]
    parameters = record["metrics"].get("parameters")
    if not rate or not parameters:
        return None
    shape = _shape_of(settings["model"], int(parameters))
    return rate * shape.training_flops_per_token(settings["pretrain"]["sequence_length"])


def _shape_of(model: Mapping[str, Any], parameters: int) -> ModelConfig:
    """Return the shape of a model in a record, whose vocabulary follows from its number of parameters."""
    recipe = read_record(ModelRecipe, model)
    without = recipe.shape(vocab_size=1).parameter_count
    a_token = recipe.width * (1 if recipe.tied_embeddings else 2)
    return recipe.shape(vocab_size=1 + (parameters - without) // a_token)


def _same_machines(made: Artifact, size: Size) -> bool:
    """Whether a training ran on the same kind of device and as many processes as the profile says."""
    notes = made.record.get("notes", {})
    device = "cuda" if size.gpus_per_node else "cpu"
    return notes.get("device") == device and notes.get("processes") == size.nodes * size.processes


def _layouts(training: PlannedTraining, layout: Layout, gpu: Device, mfu: float) -> list[dict[str, Any]]:
    found = forecast.layouts(training, layout, gpu, mfu=mfu)
    return [
        {
            **asdict(fit.layout),
            "in_words": forecast.in_words(fit.layout),
            "peak_bytes": fit.peak_bytes,
            "peak_at": fit.moment,
            "step_seconds": fit.time.seconds,
            "compute_seconds": fit.time.compute,
            "message_seconds": fit.time.exposed + fit.time.hidden,
        }
        for fit in found[:SHOWN_LAYOUTS]
    ]

"""The stage `pretrain`: train a model from plan, shards and tokenizer, then export and check it."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from training.contract.artifact import find, write_text
from training.contract.identity import numerics
from training.contract.job import Gate, Job, Outcome, RefusedInput, Work
from training.contract.model_files import number_of_weights
from training.contract.process.precision import replaced_here
from training.contract.progress import WRITING
from training.contract.records import RecipeError, read_record, write_record
from training.contract.run_settings import RunSettings
from training.order.batches import (
    Plan,
    Shards,
    index,
    open_shards,
    read_plan,
    shapes,
)
from training.order.later_steps import ledger_before
from training.order.ledger import LEDGER_FILE, Ledger, write_ledger
from training.order.sidecars import Sidecars
from training.pretrain.capacity.divisible import check_degrees
from training.pretrain.capacity.fp8_checks import check_fp8, check_gpu
from training.pretrain.capacity.needs import Pretraining, certain_bytes, disk_bytes, most
from training.pretrain.capacity.room import check_disk, check_memory
from training.pretrain.capacity.usage import keep_freed_memory, memory_of, said
from training.pretrain.checkpoint import Store, checkpoints
from training.pretrain.held_out import HELD_OUT_BITS, HELD_OUT_TOKENS, held_out, overall_bits
from training.pretrain.looks.looks import Looks
from training.pretrain.losses.teacher import read_teacher, teacher_folder
from training.pretrain.models import export
from training.pretrain.models.attention import activate_flash_3, check_varlen
from training.pretrain.models.decoder import drawn, meta_decoder
from training.pretrain.models.families import inexpressible
from training.pretrain.models.shape import ModelConfig, ModelRecipe
from training.pretrain.objectives.objective import Objective
from training.pretrain.objectives.settings import ObjectiveRecipe
from training.pretrain.optim.averages import use_average
from training.pretrain.parallel.alone import first_alone, launcher_store
from training.pretrain.parallel.degrees import Degrees
from training.pretrain.parallel.input_verification import check_by_share
from training.pretrain.parallel.mesh import wholes
from training.pretrain.parallel.watchdog import watched
from training.pretrain.parallel.world import World, joined_world
from training.pretrain.run import RunHooks, train
from training.pretrain.samples import sampler
from training.pretrain.settings import PretrainRecipe
from training.pretrain.stages.kept_state import add_seconds, keeps_state, lay_state, moved_state, save_state
from training.pretrain.state import identity_of
from training.pretrain.step import Trainer
from training.pretrain.watch.items import read_items
from training.pretrain.watch.languages import read_languages
from training.pretrain.watch.settings import WatchRecipe

MODEL_FOLDER = "model"
PLANS = ("training_plan", "ladder_plan", "reference_plan", "long_context_plan")  # a job has one of them
CHECKPOINTS_FOLDER = "checkpoints"
BUNDLE_FOLDER = "stopped"
HANGS_FOLDER = "hangs"
SKIPPED_FILE = "skipped_documents.jsonl"
COMPARED_POSITIONS = 256  # of each of two rows, on which the exported model is compared with the trained one


def run(job: Job, work: Work) -> Outcome:
    """Train a base model, or train an adopted model further; see `trained`."""
    adopted = job.inputs_of("adopted_model")
    return trained(job, work, start=adopted[0].file(MODEL_FOLDER) if adopted else None)


def trained(job: Job, work: Work, *, start: Path | None = None) -> Outcome:
    """Train, export and check a model. Every process of a distributed job calls this; only the first one writes.

    `start` is the folder of a model whose weights training begins with; None means that the recipe's seed initialises
    them.
    """
    recipe = job.settings_as(PretrainRecipe, "pretrain")
    set_up_torch(job)
    numerics.note(job, work, any_processes=job.run.audit, pretrains=True)
    check_devices(job.run)
    degrees = Degrees.of(job.run)
    with joined_world(degrees, hang_seconds=job.run.hang_seconds) as world:
        check_by_share(job.input_of(*PLANS), job.inputs_of("token_shards"), world)
        plan, shards, sidecars = open_inputs(job, recipe)
        shape = model_shape(job.settings_as(ModelRecipe, "model"), _tokenizer_folder(job), start)
        if not own_layout(shape, recipe):
            export.require_transformers()
        check_degrees(
            degrees,
            shape,
            phases=plan.phases,
            optimizer=recipe.optimizer,
            part=recipe.optimizer_part,
            processes=world.size,
            is_audited=job.run.audit,
            micro_batch_tokens=job.run.micro_batch_tokens,
        )
        if recipe.precision == "fp8":
            check_fp8_here(shape, plan, job.run, world)
        check_teachers_objective(job)
        taught_by = teacher_folder(job, recipe, _tokenizer_folder(job), world)
        fallback = world.first_said(replaced_here(recipe.precision, world.device))
        computed = replace(recipe, precision="fp32") if fallback else recipe
        check_room(shape, computed, plan, job, world, taught_by)
        store = Store(work.scratch / CHECKPOINTS_FOLDER, world)
        check_disk("pretrain", disk_bytes(shape, recipe, kept=store.kept, **_missing(job)), work.path)
        if job.goes_on_from is not None:
            own, is_whole = identity_of(shape, recipe, plan), step_of(job) is None
            lay_state(job.goes_on_from, store, work, own, recipe, is_whole=is_whole)
        store.tidy()
        model = meta_decoder(shape)  # no process ever holds the whole model
        trainer = Trainer(
            model,
            recipe,
            plan,
            shards,
            world,
            # A checkpoint will replace all of them.
            weights=() if checkpoints(store.folder) else first_weights(shape, recipe, start),
            micro_batch_tokens=job.run.micro_batch_tokens,
            objective=make_objective(recipe, plan, _tokenizer_folder(job)),
            is_audited=job.run.audit,
        )
        if fallback and world.is_first:
            work.progress.message(fallback, level="WARNING")
        if taught_by:
            trainer.learn_from(read_teacher(taught_by, world))
        model.set_recompute(job.run.recompute)
        compile_model(trainer, job.run.compile)
        if job.run.attention != "auto":
            check_varlen(
                name=job.run.attention,
                device=world.device,
                dtype=trainer.dtype,
                is_plain=recipe.objective.is_causal and shape.own_layers is None,
                is_cut=world.length("context") > 1,
                is_grouped=shape.group > 1,
            )
            if job.run.attention == "flash_3":
                activate_flash_3()
            trainer.attention = "varlen"
        broken = trainer.state.resume(store)
        for line in broken:
            work.progress.message(f"a checkpoint is damaged: {line}", level="WARNING")
        resumed_at = trainer.state.position.step
        add_seconds(job, trainer)
        sample = sampler(_tokenizer_folder(job), trainer) if job.run.text_samples else None
        if world.is_first and sample is None and job.run.text_samples:
            work.progress.message(
                "no text samples: the objective continues no text, the package tokenizers is not installed, or nothing"
                " is held out"
            )
        watch = RunHooks(
            progress=work.progress,
            checkpoint_seconds=job.run.checkpoint_seconds,
            bundle=work.path / BUNDLE_FOLDER,
            describe=sidecars.describe,
            sample=sample,
            sample_steps=job.run.sample_steps,
            evaluation_steps=job.run.evaluation_steps,
            read_steps=job.run.read_steps,
            looks=looks_of(job, trainer),
            keep={
                step: partial(keep, one, work, trainer, sidecars)
                for one in job.on_the_way
                if (step := step_of(one)) is not None
            },
            until=step_of(job),
        )
        if watch.looks is not None:
            work.progress.message(str(watch.looks))
        hangs = work.path / HANGS_FOLDER
        with watched(rank=world.rank, size=world.size, seconds=job.run.hang_seconds, messages=hangs) as trainer.alive:
            train(trainer, watch)
            work.progress.phase(WRITING)
            if step_of(job) is None:
                use_average(trainer.optimizers)
            state = save_state(job, work, trainer)
            languages = None if watch.looks is None else watch.looks.languages
            measured, compared = held_out(trainer, languages), trained_logits(trainer)
            if watch.looks is not None and (answers := watch.looks.answers()):
                step, steps = trainer.state.position.step, plan.record.steps
                work.progress.log(step=step, **answers)
                work.progress.message(f"step {step} of {steps}: {said(answers)}")
            if watch.looks is not None:
                work.progress.message(watch.looks.cost)
            weights = alive_through(wholes(trainer.model, trainer.pieces), trainer.alive)
            if not world.is_first:
                deque(weights, maxlen=0)  # takes part in the messages by which the first process gets each weight
                return Outcome(files=())
            exported = export_model(job, work, trainer, weights)
        notes = _notes(trainer, broken, resumed_at)
        outcome = _finish(job, work, trainer, exported, compared, measured, notes, sidecars)
        return replace(outcome, beside=moved_state(state, work))


def check_teachers_objective(job: Job) -> None:
    """Raise RecipeError if a teacher was trained to see later tokens: it would be read from left to right."""
    made = find(Path(job.settings["teacher"]["path"])) if "teacher" in job.settings else None
    objective = made.record.get("settings", {}).get("pretrain", {}).get("objective") if made is not None else None
    if objective and not read_record(ObjectiveRecipe, objective).is_causal:
        raise RecipeError(
            f"pretrain.distill.teacher: {job.settings['teacher']['path']} was trained by pretrain.objective"
            f" {objective['kind']} and says no next token; a teacher of the objective causal is right"
        )


def _missing(job: Job) -> dict[str, int]:
    """Return how many steps are still to be kept on the way, and how many states, those of the job itself included."""
    missing = [one for one in job.on_the_way if find(Path(one.output)) is None]
    return {"steps": len(missing), "states": sum(keeps_state(one) for one in (*missing, job))}


def step_of(job: Job) -> int | None:
    """Return the step after which the model of a job is kept; None if it is that of the whole training."""
    return job.settings.get("kept", {}).get("step")


def keep(job: Job, work: Work, trainer: Trainer, sidecars: Sidecars) -> None:
    """Commit the model as it is now as the artifact of `job`, unless it is there; all processes must call this.

    `work` is that of the training.
    """
    if trainer.world.first_said("there" if find(Path(job.output)) is not None else ""):
        return
    state = save_state(job, work, trainer)
    measured, compared = held_out(trainer), trained_logits(trainer)
    weights = alive_through(wholes(trainer.model, trainer.pieces), trainer.alive)

    def made(own: Work) -> Outcome:
        exported = export_model(job, own, trainer, weights)
        outcome = _finish(job, own, trainer, exported, compared, measured, _notes(trainer, (), 0), sidecars)
        return replace(outcome, beside=moved_state(state, own))

    with _commit_alone(job, trainer):
        if trainer.world.is_first:
            assert work.commit is not None, "the runner gives it"
            work.commit(job, made)
        deque(weights, maxlen=0)  # takes part in the messages by which the first process gets each weight


def _commit_alone(job: Job, trainer: Trainer) -> AbstractContextManager[None]:
    """Return the context in which the first process commits a step, for as long as it takes."""
    if trainer.world.size == 1:
        return nullcontext()
    seconds, is_first = job.run.hang_seconds, trainer.world.is_first
    return first_alone(
        launcher_store(seconds), job.fingerprint, is_first=is_first, alive=trainer.alive, seconds=seconds
    )


def looks_of(job: Job, trainer: Trainer) -> Looks | None:
    """Return what is measured of a training at the steps that its recipe watches; None if it watches nothing."""
    if "watch" not in job.settings:
        return None
    found = [*job.guards_of("watched_items"), *job.inputs_of("watched_items")]
    items = read_items(found[0].folder) if found else {}
    languages = read_languages(found[0].folder) if found else None
    recipe, share = job.settings_as(WatchRecipe, "watch"), job.run.watch_share
    return Looks(trainer, recipe, items, share=share, languages=languages)


def trained_logits(trainer: Trainer) -> tuple[Tensor, Tensor]:
    """Return the beginnings of two rows `[2, L]`, and the logits `[2, L, V]` of the trained model for them, in fp32.

    All processes must call this.
    """
    rows, _, _ = trainer.shards.rows(index(trainer.plan, 0)[:2], length=trainer.plan.phase_at(0).sequence_length)
    rows = rows[:, :COMPARED_POSITIONS]
    places = range(rows.shape[1])
    logits = [trainer.logits(row.tolist(), at=places, dtype=torch.float32) for row in rows]
    return torch.from_numpy(rows).to(trainer.world.device), torch.stack(logits)


def alive_through(weights: Iterable[tuple[str, Tensor]], alive: Callable[[], None]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights; each of them is a sign of life."""
    for one in weights:
        alive()
        yield one


def export_model(job: Job, work: Work, trainer: Trainer, weights: Iterable[tuple[str, Tensor]]) -> tuple[str, ...]:
    """Write the trained model's folder; return the names of its files."""
    names = export.write_weights(
        trainer.model.config,
        weights,
        work.path / MODEL_FOLDER,
        tokenizer=_tokenizer_folder(job),
        eos_id=trainer.plan.record.eos_id,
        own_layout=bool(own_layout(trainer.model.config, trainer.recipe)),
    )
    return tuple(f"{MODEL_FOLDER}/{name}" for name in names)


def compile_model(trainer: Trainer, what: bool | str) -> None:
    """Let torch compile the whole model, or each of its blocks when it first runs. The first passes take longer.

    The arithmetic of the loss is compiled too.
    """
    trainer.compiles_loss = bool(what)
    if what == "blocks":
        for block in trainer.model.blocks:
            block.compile()
    elif what and trainer.world.is_split:
        raise RecipeError("compile=true: a model that is spread over processes is no one graph; blocks is right")
    elif what:
        trainer.hidden = torch.compile(trainer.model)


def model_shape(recipe: ModelRecipe, tokenizer: Path, start: Path | None = None) -> ModelConfig:
    """Return the recipe's shape with the size of the tokenizer's vocabulary.

    A model in `start` may have more rows than there are tokens, as many published models have; it keeps them.
    """
    size = max(export.token_ids(tokenizer).values()) + 1
    return recipe.shape(vocab_size=size if start is None else max(size, export.read_shape(start).vocab_size))


def own_layout(shape: ModelConfig, recipe: PretrainRecipe) -> tuple[str, ...]:
    """Return why a model is saved in the package's own layout; empty if a class of transformers can run it."""
    return (*inexpressible(shape), *recipe.objective.inexpressible())


def first_weights(
    shape: ModelConfig, pretrain: PretrainRecipe, start: Path | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight and buffer with which training begins, by name, one after the other, on the CPU.

    They are those of the model in `start`, or are drawn from the recipe's seed, the same on every process and device.
    The seed's generator is used for the model alone, so torch's random state is the same in every case.
    """
    if start is not None:
        yield from export.read_weights(shape, start)
        return
    model = meta_decoder(shape)
    generator = torch.Generator().manual_seed(pretrain.seed)
    yield from drawn(model, zero_outputs=pretrain.zero_init_outputs, generator=generator)
    yield from ((name, torch.zeros(buffer.shape)) for name, buffer in model.named_buffers())


def make_objective(recipe: PretrainRecipe, plan: Plan, tokenizer: Path) -> Objective:
    """Return the recipe's objective, which uses the tokenizer's token ids and the plan's end-of-text token."""
    ids = export.token_ids(tokenizer)
    return Objective(
        recipe.objective,
        seed=recipe.seed,
        token_ids=ids,
        eos_id=plan.record.eos_id,
        vocab_size=max(ids.values()) + 1,
    )


def open_inputs(job: Job, recipe: PretrainRecipe) -> tuple[Plan, Shards, Sidecars]:
    """Return the plan, the token shards and their sidecars (the documents of each shard).

    They are checked against each other, and against the tokenizer and the recipe.
    """
    item, tokenizer = job.input_of(*PLANS), job.input_of("tokenizer").digest
    plan = read_plan(item.folder, digest=item.digest)
    record = plan.record
    if record.tokenizer_digest != tokenizer:
        raise RefusedInput(
            f"training_plan was made with tokenizer {record.tokenizer_digest[:12]}, the job gives {tokenizer[:12]};"
            " materialize token_shards and training_plan again"
        )
    batches = recipe.batches
    if batches.tokens == "auto":  # then the plan alone knows the number of steps
        batches = batches.of_tokens(plan.tokens_before(record.steps))
    asked, planned = (
        (one.seed, one.packing, *shapes(phases)) for one, phases in ((batches, batches.phases), (record, plan.phases))
    )
    if asked != planned:
        raise RecipeError(
            f"pretrain: seed, packing and (sequence_length, global_batch_tokens, steps) are {asked}, the plan was made"
            f" for {planned}; materialize training_plan again"
        )
    inputs = {one.fingerprint: one for one in job.inputs_of("token_shards")}
    shards = open_shards(plan, inputs, verify=True)
    return plan, shards, Sidecars(plan, inputs)


def set_up_torch(job: Job) -> None:
    """Set up memory reuse and the number of threads for the job."""
    keep_freed_memory()
    numerics.use_threads(job.run)


def check_devices(run: RunSettings) -> None:
    """Raise RecipeError if this node has fewer GPUs than the profile says, instead of training on the CPU unnoticed."""
    found = torch.cuda.device_count()
    if found >= run.gpus_per_node:
        return
    is_blind = torch.version.cuda is None and torch.version.hip is None
    here = f" (torch {torch.__version__}, built for CPUs alone, sees none of any node's)" if is_blind else ""
    raise RecipeError(
        f"the profile says gpus_per_node={run.gpus_per_node}, this node has {found}{here}; choose another profile"
        " (gpus_per_node: 0 trains on the CPU) or ask the scheduler for a node that has them"
    )


def check_fp8_here(config: ModelConfig, plan: Plan, run: RunSettings, world: World) -> None:
    """Raise RecipeError if this process's device cannot compute products in fp8 or would gain nothing by it."""
    check_gpu(world.device)
    check_fp8(
        config,
        phases=plan.phases,
        degrees=world.degrees,
        processes=world.size,
        micro_batch_tokens=run.micro_batch_tokens,
        compiled=bool(run.compile),
        gpus_per_node=torch.cuda.device_count(),
        device=torch.cuda.get_device_name(world.device),
    )


def check_room(
    config: ModelConfig, recipe: PretrainRecipe, plan: Plan, job: Job, world: World, taught_by: Path | None
) -> None:
    """Raise RecipeError, showing the calculation, if the known needs of a node's processes exceed its memory."""
    run, probabilities = replace(job.run, nodes=1, processes=world.size), world.device.type == "cpu"
    teacher = export.read_shape(taught_by) if taught_by else None
    trained = (Pretraining(shape=config, recipe=recipe, phase=phase, teacher=teacher) for phase in plan.phases)
    needed = most([certain_bytes(one, run, probabilities=probabilities) for one in trained])
    total, where = memory_of(world.device)
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if world.device.type == "cpu" else 1
    check_memory("pretrain", needed, together=together, total=total, where=where)


def _tokenizer_folder(job: Job) -> Path:
    return job.input_of("tokenizer").folder


def _notes(trainer: Trainer, broken: tuple[str, ...], resumed_at: int) -> dict[str, Any]:
    """Return the notes for the artifact's record.

    They are number formats, device and processes, and everything unusual in the run.
    """
    notes: dict[str, Any] = {
        "dtypes": trainer.formats(),
        "device": trainer.world.device.type,
        "attention": trainer.attention,
        "processes": trainer.world.size,
        "threads": torch.get_num_threads(),
        "passes_per_step": len(trainer.passes[-1]),
        "torch": torch.__version__,
    }
    if trainer.fp8 is not None:
        notes["fp8"] = trainer.fp8.formats
        notes["torchao"] = version("torchao")
    if trainer.world.is_split:
        notes["mesh"] = trainer.world.degrees.sizes(trainer.world.size)
    if trainer.teacher is not None:
        notes["teacher_parameters"] = trainer.teacher.config.parameter_count
    if resumed_at:
        notes["resumed_at_step"] = resumed_at
    if broken:
        notes["broken_checkpoints"] = list(broken)
    if trainer.state.ledger.entries:
        notes["skipped_steps"] = trainer.state.ledger.steps
    if trainer.state.position.rerun_steps:
        notes["rerun_steps"] = trainer.state.position.rerun_steps
    return notes


def _finish(
    job: Job,
    work: Work,
    trainer: Trainer,
    exported: tuple[str, ...],
    compared: tuple[Tensor, Tensor],
    held_out: dict[str, float],
    notes: dict[str, Any],
    sidecars: Sidecars,
) -> Outcome:
    """Check the exported model and return the outcome of the stage."""
    position, record, ledger = trainer.state.position, trainer.plan.record, trainer.state.ledger
    if reasons := own_layout(trainer.model.config, trainer.recipe):
        notes["own_layout"] = list(reasons)
    rows, logits = compared
    with TemporaryDirectory(dir=work.scratch) as offload:
        # The model of one process fits into memory, and is then compared without the library accelerate.
        place = Path(offload) if trainer.world.is_split else None
        comparison = export.difference(logits, work.path / MODEL_FOLDER, rows, offload_folder=place)
    start = position.first_loss if position.first_loss is not None else math.nan
    end = sum(position.last_losses) / max(1, len(position.last_losses)) if position.last_losses else math.nan
    trained = trainer.plan.tokens_before(position.step) - sum(
        trainer.plan.phase_at(step).global_batch_tokens for step in ledger.steps
    )
    metrics = {
        "parameters": number_of_weights(work.path / MODEL_FOLDER),
        "steps": position.step,
        "tokens": trained,
        "loss_start": start,
        "loss_end": end,
        "tokens_per_second": trained / max(position.seconds, 1e-9),
        "training_seconds": position.seconds,
        **({"watching_seconds": position.watching_seconds} if "watch" in job.settings else {}),
        "skipped_steps": len(ledger.steps),
        "rollbacks": ledger.rollbacks,
        **held_out,
    }
    if any(name.startswith(HELD_OUT_BITS) for name in held_out):
        metrics[HELD_OUT_BITS] = overall_bits(trainer.plan, held_out)
        metrics[HELD_OUT_TOKENS] = sum(source.look_tokens for source in record.sources)
    work.progress.log(
        step=position.step, **{name: value for name, value in metrics.items() if name.startswith("held_out")}
    )
    if position.stopping.is_over:
        by = {"suite": trainer.recipe.stop.suite} if trainer.recipe.stop.suite else {}
        notes["stopped"] = write_record(position.stopping) | {"step": position.step, "steps": record.steps, **by}
    return Outcome(
        files=(*exported, *_write_ledger(work, ledger, trainer, sidecars)),
        metrics=metrics,
        gates=(
            # A kept step may be an early one, whose loss has not fallen yet.
            _loss_gate(start, end, trainer.recipe.min_loss_fall if step_of(job) is None else None, ledger),
            _export_gate(comparison),
        ),
        notes=notes,
    )


def _write_ledger(work: Work, ledger: Ledger, trainer: Trainer, sidecars: Sidecars) -> tuple[str, ...]:
    """Write the ledger of skipped steps and the documents in them, and return the names of the files.

    The steps after an early end are in the ledger too. Nothing is written if the run took all steps.
    """
    position, steps = trainer.state.position, trainer.plan.record.steps
    whole = ledger_before(ledger, position.step, steps=steps) if position.stopping.is_over else ledger
    if not whole.entries:
        return ()
    write_ledger(work.path, whole)
    if not ledger.entries:
        return (LEDGER_FILE,)
    rows = (json.dumps(row, sort_keys=True, ensure_ascii=False, default=str) for row in sidecars.skipped(ledger))
    write_text(work.path / SKIPPED_FILE, "".join(f"{row}\n" for row in rows))
    return LEDGER_FILE, SKIPPED_FILE


def _loss_gate(start: float, end: float, min_fall: float | None, ledger: Ledger) -> Gate:
    """Check that the loss is finite and, unless `min_fall` is None, fell by at least `min_fall` nats.

    The fall is measured from the first step to the mean of the last ones. The evidence includes the number of
    skipped steps and of rollbacks.
    """
    is_finite = math.isfinite(start) and math.isfinite(end)
    evidence = {
        "loss_start": start if is_finite else None,
        "loss_end": end if is_finite else None,
        "min_loss_fall": min_fall,
        "skipped_steps": len(ledger.steps),
        "rollbacks": ledger.rollbacks,
    }
    has_fallen = min_fall is None or start - end >= min_fall
    return Gate(name="loss_finite_and_falling", passed=is_finite and has_fallen, evidence=evidence)


def _export_gate(comparison: export.LogitDifference) -> Gate:
    evidence = {
        "largest_difference": comparison.largest_difference,
        "tolerance": export.TOLERANCE,
        "differing_argmax": comparison.differing_argmax,
        "positions": comparison.positions,
    }
    return Gate(name="export_equals_trainer", passed=comparison.is_equal, evidence=evidence)

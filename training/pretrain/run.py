"""A training run: its steps, and when to log, evaluate, sample, save, roll back and stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from training.contract.job import StopRequested
from training.contract.process.stop_requests import stop_requests
from training.contract.progress import Progress
from training.order.ledger import LedgerEntry
from training.pretrain import checkpoint
from training.pretrain import diagnostics as bundle
from training.pretrain.capacity.usage import peak_memory_bytes, said
from training.pretrain.held_out import held_out, overall_bits
from training.pretrain.looks.answers import WATCHED_BITS
from training.pretrain.looks.looks import Looks
from training.pretrain.models.account import peak_teraflops
from training.pretrain.parallel import stragglers
from training.pretrain.report import StepReport, Told
from training.pretrain.state import Diverged
from training.pretrain.step import Trainer

# How often a run is logged, evaluated and sampled. None of these numbers changes the weights.
LOGGED_STEPS = 200
EVALUATIONS = 4
TEXT_SAMPLES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHooks:
    """Callbacks, folders and intervals for logging, checkpoints, evaluation and text samples during a run."""

    progress: Progress
    checkpoint_seconds: float
    bundle: Path  # folder that is written when the run stops itself; see `diagnostics.py`
    describe: bundle.Describe
    sample: Callable[[], str] | None = None  # returns a text that the model writes; called by all processes
    sample_steps: int | None = None  # steps between two texts; None: TEXT_SAMPLES in a run
    evaluation_steps: int | None = None  # steps between two evaluations on held-out text; None: EVALUATIONS in a run
    read_steps: int = 1  # most steps between two waits for the device
    looks: Looks | None = None  # what is measured at the steps that the recipe watches; None: nothing
    keep: Mapping[int, Callable[[], None]] = field(default_factory=dict)  # called after the step by all processes
    until: int | None = None  # the step after which the run ends; None: the plan's last one

    def is_looked_at(self, step: int) -> bool:
        """Whether the model is looked at after so many steps."""
        return self.looks is not None and step in self.looks.steps

    def warn(self, text: str) -> None:
        """Report a warning: one line that a person should read."""
        self.progress.message(text, level="WARNING")


def train(trainer: Trainer, watch: RunHooks) -> None:
    """Run the plan's remaining steps; checkpoints go to the store that was given to `resume`.

    Raise StopRequested, with the state saved, if a signal asked to stop.
    """
    assert trainer.state.store is not None, "resume(store) says where checkpoints are kept"
    try:
        with stop_requests() as asked, trainer.state.store as store:
            goes_back = trainer.recipe.spikes.deviations or watch.read_steps > 1
            if goes_back and not checkpoint.checkpoints(store.folder):
                trainer.state.save()  # it may have to go back before the first regular checkpoint
            _run_steps(trainer, watch, store, asked)
            store.settle()
            store.tell_failed(watch.warn)
    except Diverged as error:
        bundle.write(watch.bundle, trainer, str(error), describe=watch.describe)
        trainer.world.wait()  # the first process that ends in an error ends the others
        raise Diverged(f"{error}. {watch.bundle} has the batch, its documents and the norms") from error


def _run_steps(trainer: Trainer, watch: RunHooks, store: checkpoint.Store, asked: list[int]) -> None:
    """Run the remaining steps.

    Whether to save or stop after a step follows from the flags that all processes exchanged.
    """
    steps, saved = watch.until or trainer.plan.record.steps, time.monotonic()
    alone = 0  # steps before this one are read one by one
    _compare_speeds(trainer, watch)
    if watch.looks is not None and trainer.state.position.step == 0:
        watch.progress.log(step=0, steps=steps, tokens=0, **watch.looks.at_model())
    while trainer.state.position.step < steps and not trainer.state.position.stopping.is_over:
        started, before = time.monotonic(), trainer.state.position.step
        is_due = trainer.world.is_first and not store.is_pending and started - saved > watch.checkpoint_seconds
        told = Told(stop=bool(asked), save=is_due, writing=store.is_writing)
        until = _read_at(trainer, steps, watch)
        if watch.read_steps == 1 or trainer.state.position.step < alone:
            reports: list[StepReport] | None = [trainer.run_step(told)]
        else:
            reports = trainer.run_steps(told, until=until)
        seconds = time.monotonic() - started
        trainer.state.position.seconds += seconds
        if reports is None:
            alone = until
            _go_back(trainer, watch, until=until)
            continue
        for report in reports:
            _report(trainer, watch, report, seconds=seconds / len(reports))
        if report.spike is not None:
            _roll_back(trainer, watch, report.spike)
            continue
        for step in range(before + 1, trainer.state.position.step + 1):
            if step in watch.keep:
                watch.keep[step]()
        _look_whether_over(trainer, watch)
        if not report.told.writing:
            store.commit()
        if store.tell_failed(watch.warn):
            saved = time.monotonic() - max(0.0, watch.checkpoint_seconds - checkpoint.RETRY_SECONDS)
        if trainer.state.position.step < steps and (report.told.save or report.told.stop):
            store.settle()
            trainer.state.save()
            saved = time.monotonic()
            _compare_speeds(trainer, watch)
            if report.told.stop:
                text = _saved_at_last(trainer, watch, store)
                watch.progress.saved(text)
                trainer.world.wait()  # the first process that ends in an error ends the others
                raise StopRequested(text)


def _look_whether_over(trainer: Trainer, watch: RunHooks) -> None:
    """Look at the model if a recipe that ends training early asks for it after the present step."""
    step, stop, stopping = trainer.state.position.step, trainer.recipe.stop, trainer.state.position.stopping
    if not stop.is_due(step) or step == trainer.plan.record.steps:
        return
    if stop.suite:
        assert watch.looks is not None, "the suite is among those that are watched"
        found, what = watch.looks.answers(), f"the right answers of {stop.suite}"
        bits = found[f"{WATCHED_BITS}_{stop.suite}"]
    else:
        found, what = held_out(trainer), "held-out text"
        bits = overall_bits(trainer.plan, found)
    waited = trainer.plan.tokens_before(step) - trainer.plan.tokens_before(stopping.best_step)
    stopping.look(step, bits, waited_tokens=waited, recipe=stop)
    watch.progress.log(step=step, tokens=trainer.plan.tokens_before(step), **found)
    if stopping.is_over:
        watch.progress.message(
            f"step {step}: training ends; in {waited:,} tokens the loss on {what}, {bits:.4f} bits per byte, has not"
            f" fallen by more than {stop.min_fall:g} from {stopping.best_bits:.4f} at step {stopping.best_step}"
        )


def _read_at(trainer: Trainer, steps: int, watch: RunHooks) -> int:
    """Return the step before which the device's numbers are read next: at the latest before what is due then."""

    def is_due(at: int) -> bool:
        evaluated = _is_one_of(at, steps, EVALUATIONS, every=watch.evaluation_steps)
        sampled = watch.sample is not None and _is_one_of(at, steps, TEXT_SAMPLES, every=watch.sample_steps)
        is_kept = at in watch.keep or at == watch.until
        return evaluated or sampled or watch.is_looked_at(at) or is_kept or trainer.recipe.stop.is_due(at)

    step = trainer.state.position.step
    most = step + watch.read_steps
    return next((at for at in range(step + 1, most) if is_due(at)), most)


def _go_back(trainer: Trainer, watch: RunHooks, *, until: int) -> None:
    """Return to the newest checkpoint: a step before `until` had a loss spike, or a loss that was not finite."""
    broken = trainer.state.go_back()
    for line in broken:
        watch.warn(f"a checkpoint is damaged: {line}")
    watch.warn(
        f"a step before {until} was not finite or completed a spike, and steps after it had begun: back to step"
        f" {trainer.state.position.step}; the steps before {until} are taken again, one by one"
    )


def _compare_speeds(trainer: Trainer, watch: RunHooks) -> None:
    """Log how long the slowest process computes, relative to the median, and warn of each that is too slow."""
    if trainer.world.size == 1:
        return
    slowest, sentences = stragglers.compared(trainer.world)
    if trainer.world.is_first:
        watch.progress.log(step=max(1, trainer.state.position.step), slowest_process=slowest)
        for sentence in sentences:
            watch.warn(sentence)


def _saved_at_last(trainer: Trainer, watch: RunHooks, store: checkpoint.Store) -> str:
    """Wait for the last checkpoint before a stop, and try once more if it failed; return the step at which to resume.

    The result is a sentence for people.
    """
    step, steps = trainer.state.position.step, trainer.plan.record.steps
    store.settle()
    if store.tell_failed(watch.warn):
        trainer.state.save()
        store.settle()
    if store.failed:
        return f"{store.failed[-1]}; the same command goes on from the newest checkpoint before step {step} of {steps}"
    return f"checkpoint of step {step} of {steps} saved; the same command goes on from there"


def _roll_back(trainer: Trainer, watch: RunHooks, spike: LedgerEntry) -> None:
    broken = trainer.state.roll_back(spike)
    for line in broken:
        watch.warn(f"a checkpoint is damaged: {line}")
    watch.warn(
        f"a spike at steps {spike.onset} to {spike.seen_at} (loss {spike.loss:.4g}, gradient norm"
        f" {spike.gradient_norm:.4g}): back to step {trainer.state.position.step}; steps {spike.first} to {spike.last}"
        " will not be trained on"
    )


def _report(trainer: Trainer, watch: RunHooks, report: StepReport, *, seconds: float) -> None:
    """Evaluate, look, sample and log after a step, if the step is due for it."""
    steps, step = trainer.plan.record.steps, report.step + 1
    looks = watch.looks if watch.is_looked_at(step) else None
    measured = _measured(trainer, watch, looks, step)
    of_step = {} if looks is None or report.is_skipped else looks.at_step()
    if measured:
        watch.progress.message(f"step {step} of {steps}: {said(_numbers(trainer, report, seconds=seconds) | measured)}")
    is_sampled = _is_one_of(step, steps, TEXT_SAMPLES, every=watch.sample_steps)
    text = watch.sample() if is_sampled and watch.sample is not None else None
    if not trainer.world.is_first:
        return
    if report.was_rerun:
        numbers = f"loss {report.loss}, gradient norm {report.gradient_norm}"
        outcome = f"skipped: {numbers}" if report.is_skipped else f"was not finite at first, then {numbers}"
        watch.progress.message(f"step {report.step} {outcome}", level="WARNING")
    is_logged = step == 1 or _is_one_of(step, steps, LOGGED_STEPS)
    if not report.is_skipped and (is_logged or measured or of_step):
        numbers = _numbers(trainer, report, seconds=seconds) | measured | of_step
        watch.progress.log(step=step, steps=steps, **numbers)
    elif measured:
        watch.progress.log(step=step, **measured)
    if text is not None:
        watch.progress.sample(step=step, text=text)


def _measured(trainer: Trainer, watch: RunHooks, looks: Looks | None, step: int) -> dict[str, float]:
    """Return what the model says of held-out text and exam items after a step; empty after the last one.

    The model that a training ends with may be an average, and is measured later.
    """
    steps = trainer.plan.record.steps
    if step == steps:
        return {}
    found = {} if looks is None else looks.at_model()
    if _is_one_of(step, steps, EVALUATIONS, every=watch.evaluation_steps) and not (looks and looks.reads_text):
        found |= held_out(trainer, None if watch.looks is None else watch.looks.languages)
    return found


def _numbers(trainer: Trainer, report: StepReport, *, seconds: float) -> dict[str, float]:
    """Return the metrics of one training step, given its duration in seconds."""
    phase = trainer.plan.phase_at(report.step)
    tokens = phase.global_batch_tokens
    flops = trainer.model.config.training_flops_per_token(phase.sequence_length)
    return {
        "loss": report.loss,
        "gradient_norm": report.gradient_norm,
        "learning_rate": report.learning_rate,
        "tokens": trainer.plan.tokens_before(report.step + 1),
        "tokens_per_second": tokens / seconds,
        "teraflops_per_second": flops * tokens / seconds / 1e12,
        **_utilization(trainer, flops * tokens / seconds / 1e12),
        "data_wait_seconds": trainer.data_seconds,
        "peak_memory_bytes": peak_memory_bytes(trainer.world.device),
    }


def _utilization(trainer: Trainer, teraflops: float) -> dict[str, float]:
    """Return the model FLOPs utilization (MFU): the model's operations over the devices' peak.

    The result is empty if the peak of the device is not known.
    """
    device = trainer.world.device
    peak = peak_teraflops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return {} if peak is None else {"model_flops_utilization": teraflops / (peak * trainer.world.size)}


def _is_one_of(step: int, steps: int, wanted: int, *, every: int | None = None) -> bool:
    """Whether `step` is a multiple of `every` or, if that is None, one of about `wanted` evenly spaced steps.

    For the last step the result is always true.
    """
    return step == steps or step % (every or max(1, steps // wanted)) == 0

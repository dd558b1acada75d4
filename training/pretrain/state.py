"""The state of a run and how it is saved: position, ledger, checkpoints."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any

from torch.optim import Optimizer

from training.contract.job import RefusedInput
from training.contract.records import differing_from_defaults, read_record, write_record
from training.order.batches import Plan
from training.order.ledger import Ledger, LedgerEntry, keep_ledger
from training.pretrain import checkpoint
from training.pretrain.models.decoder import Decoder
from training.pretrain.models.shape import ModelConfig
from training.pretrain.parallel.world import World
from training.pretrain.report import StepReport
from training.pretrain.settings import PretrainRecipe
from training.pretrain.spikes import Watched
from training.pretrain.watch.stop_settings import Stopping

log = logging.getLogger(__name__)

LOSS_WINDOW = 10  # steps over which the final loss is averaged
RECENT_STEPS = 32  # steps whose reports are kept for when a run stops itself


class Diverged(RuntimeError):
    """Too many steps in a row were not finite, or more spikes occurred than the recipe allows rollbacks."""


@dataclass(kw_only=True, slots=True)
class Position:
    """The progress of a run: its present step and all other state except tensors and ledger.

    Every checkpoint contains it.
    """

    step: int = 0
    skipped_in_a_row: int = 0
    rerun_steps: list[int] = field(default_factory=list)  # not finite at first, and finite when recomputed
    first_loss: float | None = None  # None before the first step
    last_losses: list[float] = field(default_factory=list)
    watched: Watched = field(default_factory=Watched)
    clipped_steps: int = 0  # whose gradients were longer than `gradient_clip`
    stopping: Stopping = field(default_factory=Stopping)
    seconds: float = 0.0  # of the steps
    watching_seconds: float = 0.0  # of what is measured between them because the recipe watches it


class State:
    """The state of a model's training on a plan. `store` holds the checkpoints; None means that none are saved."""

    def __init__(
        self, model: Decoder, optimizers: dict[str, Optimizer], recipe: PretrainRecipe, plan: Plan, world: World
    ) -> None:
        self.model, self.optimizers = model, optimizers
        self.recipe, self.plan, self.world = recipe, plan, world
        self.position, self.ledger = Position(), Ledger()
        self.store: checkpoint.Store | None = None
        self.recent: list[StepReport] = []

    def advance(self, report: StepReport) -> None:
        """Record a step's report and move to the next step that the ledger does not contain.

        Raise Diverged if too many steps in a row were not finite.
        """
        self.recent = [*self.recent, report][-RECENT_STEPS:]
        position = self.position
        if report.is_skipped:
            self._skip(report)
        else:
            position.skipped_in_a_row = 0
            position.rerun_steps += [report.step] if report.was_rerun else []
            position.first_loss = report.loss if position.first_loss is None else position.first_loss
            position.clipped_steps += report.gradient_norm > (self.recipe.gradient_clip or math.inf)
            position.last_losses = [*position.last_losses, report.loss][-LOSS_WINDOW:]
        position.step = report.step + 1
        self._pass_over()

    def spike(self, step: int, *, loss: float, norm: float) -> LedgerEntry | None:
        """Return the ledger entry if this finite step completes a spike, else None. Phases are not compared."""
        phase = self.plan.phase_at(step).number
        if self.position.watched.phase != phase:
            self.position.watched = Watched(phase=phase)
        return self.position.watched.see(
            step,
            loss=loss,
            norm=norm,
            recipe=self.recipe.spikes,
            last_step=self.plan.record.steps - 1,
        )

    def _skip(self, report: StepReport) -> None:
        """Add a step that is not finite to the ledger.

        Raise Diverged, without adding it, if there are too many in a row.
        """
        self.position.skipped_in_a_row += 1
        if self.position.skipped_in_a_row > self.recipe.max_skipped_steps:
            skipped = [*self.ledger.steps, report.step][-self.position.skipped_in_a_row :]
            raise Diverged(
                f"steps {skipped} had a loss or gradient that is not finite, more in a row than"
                f" max_skipped_steps={self.recipe.max_skipped_steps}; lower the learning rate or look at the data"
            )
        loss, norm = (number if math.isfinite(number) else None for number in (report.loss, report.gradient_norm))
        step = report.step
        self._enter(
            LedgerEntry(
                first=step, last=step, reason="not_finite", onset=step, seen_at=step, loss=loss, gradient_norm=norm
            )
        )

    def after(self, step: int) -> int:
        """Return the next step after `step` that the ledger does not contain."""
        step += 1
        while self.ledger.reasons(step):
            step += 1
        return step

    def _pass_over(self) -> None:
        """Move to the next step that the ledger does not contain.

        If the ledger contains such steps because their loss was not finite, they count again among the steps
        skipped in a row.
        """
        while reasons := self.ledger.reasons(self.position.step):
            self.position.skipped_in_a_row += reasons == {"not_finite"}
            self.position.step += 1

    def _enter(self, entry: LedgerEntry) -> None:
        self.ledger = self.ledger.with_entry(entry)
        if self.store is not None and self.world.is_first:
            keep_ledger(self.store.folder, self.ledger)

    # Saving and resuming

    def save(self, store: checkpoint.Store | None = None) -> None:
        """Begin to write a checkpoint of the state before the present step.

        It goes into the run's store, or into `store` without the seconds, so that each run writes the same bytes.
        """
        spikes, step = self.recipe.spikes, self.position.step
        position = self.position if store is None else replace(self.position, seconds=0.0, watching_seconds=0.0)
        (store or self._kept).begin(
            step=step,
            tensors=checkpoint.pack(self.model, self.optimizers),
            own=checkpoint.pack_own(self.world),
            state={
                "position": write_record(position),
                "ledger": write_record(self.ledger.entries),
                **self._identity(),
            },
            needed_step=max(0, step - spikes.patience - spikes.rollback_steps) if spikes.deviations else None,
            places=checkpoint.places(self.model, self.optimizers),
        )

    def resume(self, store: checkpoint.Store) -> tuple[str, ...]:
        """Use `store` for checkpoints, and continue from its newest whole checkpoint if there is one.

        Return a line for each newer checkpoint that is broken, and for each that was set aside. Raise RefusedInput if
        the checkpoint belongs to another plan, recipe or model.
        """
        self.store = store
        self.ledger = store.tidy()
        found = store.newest()
        if found is None:
            if self.position.step:
                raise RefusedInput(f"{store.folder}: there is no checkpoint to go back to; someone removed it")
            self._pass_over()
            return store.lost
        checkpoint.check_identity(found.state, self._identity(), store.folder)
        checkpoint.unpack(found.tensors, self.model, self.optimizers, self.world)
        self.position = read_record(Position, found.state["position"], where="position")
        self._pass_over()
        log.info("resumed at step %d", self.position.step)
        return (*store.lost, *found.broken)

    def roll_back(self, spike: LedgerEntry) -> tuple[str, ...]:
        """Add a spike to the ledger and return to a checkpoint before the spike's first skipped step.

        Steps between the checkpoint and the skipped steps run again. Return what `resume` returns. Raise Diverged if
        the recipe allows no further rollback.
        """
        limit = self.recipe.spikes.max_rollbacks
        if self.ledger.rollbacks >= limit:
            raise Diverged(
                f"steps {spike.onset} to {spike.seen_at}: a spike (loss {spike.loss:.4g}, gradient norm"
                f" {spike.gradient_norm:.4g}) after {limit} rollbacks, and max_rollbacks={limit}; lower the learning"
                " rate or look at the data"
            )
        self._kept.settle()
        self._enter(spike)  # from here on, a run that is killed and resumed has the same result
        return self.go_back()

    def go_back(self) -> tuple[str, ...]:
        """Return to the newest checkpoint that the ledger allows. Return what `resume` returns."""
        self._kept.settle()
        self.world.wait()
        seconds = self.position.seconds
        broken = self.resume(self._kept)
        self.position.seconds = seconds
        return broken

    @property
    def _kept(self) -> checkpoint.Store:
        assert self.store is not None, "resume(store) says where checkpoints are kept"
        return self.store

    def _identity(self) -> dict[str, Any]:
        return identity_of(self.model.config, self.recipe, self.plan)


def identity_of(config: ModelConfig, recipe: PretrainRecipe, plan: Plan) -> dict[str, Any]:
    """Return what a checkpoint says of the training that it belongs to: digests of its data, and its settings."""
    settings = {"model": differing_from_defaults(config), "pretrain": differing_from_defaults(recipe)}
    return {"data": checkpoint.data_identity(plan), "settings": settings}

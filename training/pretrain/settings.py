"""The recipe section `pretrain`: budget, batches, objective, optimizer, schedule and gates."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Literal

from training.contract.parts.outside import NoSettings, OutsidePart, PartsOf
from training.contract.records import RecipeError
from training.order.batch_settings import BatchesRecipe, BatchPhase, ContinueRecipe
from training.pretrain.losses.loss import KIND as LOSS_KIND
from training.pretrain.losses.loss import ChosenLoss, outside_loss
from training.pretrain.losses.settings import DistillRecipe, LossRecipe
from training.pretrain.losses.terms import LOSSES
from training.pretrain.objectives.settings import ObjectiveRecipe
from training.pretrain.optim.average_settings import AverageRecipe
from training.pretrain.optim.optimizer import Optimizer
from training.pretrain.optim.optimizers import OPTIMIZERS
from training.pretrain.optim.outside_optimizers import KIND, outside_optimizer
from training.pretrain.optim.settings import Schedule, UpdateRecipe, check_schedule, decay_steps
from training.pretrain.spikes import SpikeRecipe
from training.pretrain.watch.keep_settings import KeepRecipe
from training.pretrain.watch.settings import WatchRecipe
from training.pretrain.watch.stop_settings import StopRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainRecipe:
    """Settings for training the base model."""

    # The whole budget. auto: as many as the corpus gives within the epochs that `mixture` allows, and within
    # `compute_budget`; the training plan decides the number.
    tokens: int | Literal["auto"]
    sequence_length: int
    global_batch_tokens: int
    batch_warmup: tuple[BatchPhase, ...] = ()  # first phases with shorter rows or smaller batches; part of the budget
    packing: Literal["end_to_end", "best_fit"] = "end_to_end"  # best_fit never cuts a document that fits into a row
    objective: ObjectiveRecipe = field(default_factory=ObjectiveRecipe)
    loss: str = "cross_entropy"  # a file of training/pretrain/losses/terms, or a part from outside
    distill: DistillRecipe = field(default_factory=DistillRecipe)
    optimizer: str = "adamw"  # a file of training/pretrain/optim/optimizers, or a part from outside
    learning_rate: float = 3e-3  # with Muon: AdamW's rate, for embeddings, norms, routers and head
    muon_learning_rate: float = 0.02
    beta1: float = 0.9  # AdamW, Lion
    beta2: float = 0.95  # AdamW, Lion (whose paper takes 0.99)
    momentum: float = 0.9  # SGD
    weight_decay: float = 0.1  # of matrices; norm gains never decay
    decay_embeddings: bool = True
    schedule: Schedule = "cosine"
    warmup_fraction: float = 0.02
    decay_fraction: float = 0.2  # wsd: the share of steps over which the rate falls
    final_learning_rate_fraction: float = 0.1
    gradient_clip: float | None = 1.0  # largest norm of all gradients together; None: no limit
    average: AverageRecipe = field(default_factory=AverageRecipe)
    z_loss: float = 0.0  # weight of log²Z, which keeps logits from drifting; PaLM took 1e-4 (arXiv 2204.02311)
    precision: Literal["bf16", "fp32", "fp8"] = "bf16"  # fp8: for the layers' products, on GPUs that gain by it
    zero_init_outputs: bool = True
    max_skipped_steps: int = 3  # successive steps whose gradient is not finite, even when recomputed
    spikes: SpikeRecipe = field(default_factory=SpikeRecipe)
    min_loss_fall: float = 0.1  # gate, nats per token from start to end
    compute_budget: float | None = None  # most FLOPs of the training, for `tokens: auto`; None: no limit
    watch: WatchRecipe = field(default_factory=WatchRecipe)
    keep: KeepRecipe = field(default_factory=KeepRecipe)
    stop: StopRecipe = field(default_factory=StopRecipe)
    continues: ContinueRecipe = field(default_factory=ContinueRecipe)
    # Of a loss: its settings; of one from outside, and of an optimizer from outside, also `from`.
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_settings()
        _ = self.batches  # checks itself
        self._check_continued()
        self._check_averaged()

    def _check_settings(self) -> None:
        if self.compute_budget is not None and (self.tokens != "auto" or self.compute_budget <= 0):
            raise RecipeError(
                f"pretrain.compute_budget={self.compute_budget:g} limits tokens: auto, by FLOPs above 0; tokens is"
                f" {self.tokens}, with which compute_budget: null is right"
            )
        check_schedule(self, "pretrain")
        self._check_stop()
        if self.gradient_clip is not None and self.gradient_clip <= 0:
            raise RecipeError(f"pretrain.gradient_clip={self.gradient_clip:g}; above 0, or null for no limit")
        is_plain = self.loss == "cross_entropy" and not self.z_loss and self.objective.is_causal
        if self.distill.teacher and not is_plain:
            raise RecipeError(
                f"pretrain.distill: not with objective {self.objective.kind}, loss {self.loss}, z_loss={self.z_loss}; a"
                " teacher says the next token, and its probabilities keep the logits where they are"
            )
        if self.z_loss and self.loss != "cross_entropy":
            raise RecipeError(
                f"pretrain.z_loss={self.z_loss} is without effect: only the loss cross_entropy adds it, and the loss is"
                f" {self.loss}"
            )
        self._parts.check_used([self.optimizer, self.loss], OPTIMIZERS, LOSSES)
        _ = self.own_settings, self.chosen_loss  # check themselves

    def _check_averaged(self) -> None:
        kept, known = self.kept_steps, ", ".join(map(str, self.kept_steps)) or "none"
        if other := sorted(set(self.averaged_steps) - set(kept)):
            raise RecipeError(f"pretrain.keep.average.steps: {other[0]} is not kept; kept is {known}")
        if self.keep.average.steps and len(self.averaged_steps) < 2:
            raise RecipeError(f"pretrain.keep.average: {len(self.averaged_steps)} kept; an average needs two steps")

    def _check_stop(self) -> None:
        if self.stop.patience_tokens is None:
            return
        if self.keep.is_asked:
            raise RecipeError("pretrain.stop: not with pretrain.keep, because nobody knows which steps will be reached")
        if self.average.kind == "uniform":
            raise RecipeError(
                "pretrain.stop: not with pretrain.average.kind: uniform, the mean of the budget's last steps"
            )
        if not self.objective.continues_text:
            raise RecipeError(
                f"pretrain.stop: objective {self.objective.kind} gives no bits per byte of held-out text; null is right"
            )

    def _check_continued(self) -> None:
        if not self.continues.tokens:
            if self.continues.recipe:
                raise RecipeError(
                    f"pretrain.continues.tokens: empty; give the pretrain.tokens of {self.continues.recipe}"
                )
            return
        if self.tokens == "auto":
            raise RecipeError("pretrain.tokens: auto; a training that continues another one needs a number")
        if self.schedule != "wsd":
            raise RecipeError(
                f"pretrain.continues: not with schedule: {self.schedule}, whose rate at every step depends on the whole"
                " budget; wsd is right. Or export the model and adopt it (adopt.model), to begin with a new warm-up"
            )
        if self.average.kind == "uniform" or self.stop.patience_tokens is not None:
            name = "stop" if self.stop.patience_tokens is not None else "average.kind: uniform"
            raise RecipeError(f"pretrain.continues: not with pretrain.{name}, which depends on the whole budget")
        budgets, steps = (*self.continues.tokens, self.tokens), (*self.continued_steps, self.steps)
        if short := [place for place, (one, longer) in enumerate(pairwise(steps)) if longer <= one]:
            before, own = (f"{budgets[place]:,} tokens ({steps[place]:,} steps)" for place in (short[0], short[0] + 1))
            raise RecipeError(f"pretrain.tokens: {own} continue {before}; a larger number is right")
        if not self.continued_at[0]:
            raise RecipeError("pretrain.continues: its decay begins with the first step; nothing before it can go on")

    @property
    def continued_steps(self) -> tuple[int, ...]:
        """The number of steps of each training that this one continues, ascending; the first one gives the warm-up."""
        return tuple(self.batches.of_tokens(tokens).steps for tokens in self.continues.tokens)

    @property
    def continued_at(self) -> tuple[int, ...]:
        """How many first steps of each of them are steps of this training: those before its decay."""
        return tuple(steps - decay_steps(steps, self.decay_fraction) for steps in self.continued_steps)

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """The steps after which the model is kept. Raise RecipeError if the training cannot keep them.

        Those of a training that is continued are kept by the recipe of that one.
        """
        if not self.keep.is_asked:
            return ()
        if self.tokens == "auto":
            raise RecipeError("pretrain.keep: its steps are partitions; give pretrain.tokens a number, not auto")
        if self.spikes.deviations:
            raise RecipeError(
                "pretrain.keep: not with pretrain.spikes.deviations, because a training that goes back after a spike"
                " would have kept a step that it then takes otherwise"
            )
        first, kept = max(self.continued_at, default=0), self.keep.steps_of(self.batches.steps, "pretrain.keep")
        if not (later := tuple(step for step in kept if step > first)):
            raise RecipeError(
                f"pretrain.keep: {', '.join(map(str, kept))}; up to step {first:,} the training is the one that it"
                " continues, whose recipe keeps its steps; name a later step, or keep: {steps: [], optimizer: false}"
            )
        return later

    @property
    def averaged_steps(self) -> tuple[int, ...]:
        """The kept steps that are averaged, ascending."""
        return self.keep.averaged(self.kept_steps)

    @property
    def batches(self) -> BatchesRecipe:
        """The settings of rows and batches, from which the training plan is made."""
        return BatchesRecipe(**{one.name: getattr(self, one.name) for one in fields(BatchesRecipe)})

    @property
    def update(self) -> UpdateRecipe:
        """The settings from which any optimizer is made."""
        return UpdateRecipe(**{one.name: getattr(self, one.name) for one in fields(UpdateRecipe)})

    @property
    def _parts(self) -> PartsOf:
        return PartsOf("pretrain", self.parts)

    @property
    def optimizer_part(self) -> Optimizer:
        """The optimizer's declaration. Raise RecipeError if it is neither Pedigree's nor one from outside."""
        return OPTIMIZERS.get(self.optimizer) or outside_optimizer(self.optimizer, self._parts, tuple(OPTIMIZERS))

    def outside_parts(self) -> dict[str, OutsidePart]:
        """Return the optimizer, the loss and the objective by name if they are not Pedigree's."""
        found = self.objective.outside_parts()
        for kind, where, name, known in (
            (KIND, "optimizer", self.optimizer, OPTIMIZERS),
            (LOSS_KIND, "loss", self.loss, LOSSES),
        ):
            own = None if name in known else self._parts.find(kind, name, known, where)
            if own is not None and found.setdefault(name, own) != own:
                raise RecipeError(f"pretrain: objective, optimizer or loss: two are named {name!r}; name one otherwise")
        return found

    @property
    def own_settings(self) -> Any:
        """The settings of an optimizer from outside as its record; Pedigree's have none of their own."""
        known = self.optimizer_part.settings
        return NoSettings() if self.optimizer in OPTIMIZERS else self._parts.settings(self.optimizer, known)

    @property
    def chosen_loss(self) -> ChosenLoss:
        """The loss with its settings. Raise RecipeError if it is neither Pedigree's nor one from outside."""
        part = LOSSES.get(self.loss) or outside_loss(self.loss, self._parts, tuple(LOSSES))
        return ChosenLoss(
            part=part,
            recipe=LossRecipe(z_loss=self.z_loss, distill=self.distill),
            settings=self._parts.settings(self.loss, part.settings),
            who="" if self.loss in LOSSES else f"loss {self.loss}",
        )

    @property
    def phases(self) -> tuple[BatchPhase, ...]:
        """The phases of the batch warmup, followed by the main phase."""
        return self.batches.phases

    @property
    def steps(self) -> int:
        """Number of optimizer steps: the whole batches within the budget."""
        return self.batches.steps

    @property
    def step_tokens(self) -> int:
        """Tokens of all steps: the budget without a remainder that does not fill a batch."""
        return self.batches.step_tokens

"""Looks at a training: after which steps, what is measured, and how many exam items the profile's share pays for."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from training.order.batches import Plan, held_out_samples
from training.pretrain.held_out import held_out
from training.pretrain.looks.answers import AskedItems
from training.pretrain.models.decoder import Decoder
from training.pretrain.models.shape import ModelConfig
from training.pretrain.parallel.mesh import reshard
from training.pretrain.step import Trainer
from training.pretrain.watch.items import WatchedItem, num_rows
from training.pretrain.watch.settings import WatchRecipe

PASS_SHARE = 1 / 3  # of a forward and a backward pass together: a forward pass
OVERHEAD = 768  # positions that a small model could read on a CPU in the time that a look takes whatever it reads


class Looks:
    """Measures a trainer's model and its last step, at the steps that the recipe watches.

    `languages` are those of the held-out documents, if losses are asked for by language.

    `share` is the part of the training's time that all looks together may take, in which a position counts as its
    operations, and a look as OVERHEAD positions more than it reads. So the items do not depend on a clock. If the share
    does not pay for held-out text beside the items, a look reads none, and this is only read at the evaluations of
    every run.
    """

    def __init__(
        self,
        trainer: Trainer,
        recipe: WatchRecipe,
        items: Mapping[str, Sequence[WatchedItem]],
        *,
        share: float,
        languages: Sequence[str] | None = None,
    ) -> None:
        self.trainer, self.languages, plan = trainer, languages, trainer.plan
        self.steps = recipe.steps_of(plan.record.steps)
        trainer.looks_at = lambda step: step + 1 in self.steps
        length = plan.record.sequence_length
        trained = trained_positions(plan, trainer.model.config)
        paid = share * trained / len(self.steps) - OVERHEAD  # positions of one look
        text = length * sum(len(held_out_samples(plan, number)) for number in range(len(plan.record.sources)))
        self.reads_text = 0 < text <= (paid / 2 if items else paid)
        text *= self.reads_text
        chosen = within(items, length, paid - text) if recipe.items == "auto" else items
        self.exam = AskedItems(chosen, length) if chosen else None
        self.positions = text + (self.exam.rows.tokens.size if self.exam else 0)  # that one look reads
        self.share = len(self.steps) * (self.positions + OVERHEAD) / trained

    def __str__(self) -> str:
        """Return what is measured and what it costs, as a sentence."""
        exam = [f"{len(some)} items of {suite}" for suite, some in self.exam.items.items()] if self.exam else []
        seen = ", ".join([*exam, *(["held-out text"] if self.reads_text else [])])
        return (
            f"watched after {len(self.steps)} steps, for about {self.share:.1%} of the training's time: losses, norms"
            f"{f', {seen} ({self.positions:,} positions)' if seen else ''}"
        )

    @property
    def cost(self) -> str:
        """What the looks cost by the clock, as a sentence."""
        position = self.trainer.state.position
        seconds, steps = position.watching_seconds, position.seconds
        return f"watching took {seconds:.1f} s, {seconds / max(steps, 1e-9):.1%} of the {steps:.1f} s of the steps"

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Context manager that adds the seconds within it to the time that watching a training took."""
        started = time.monotonic()
        yield
        self.trainer.state.position.watching_seconds += time.monotonic() - started

    def at_model(self) -> dict[str, float]:
        """Return what the model now says of exam items and held-out text. All processes must call this."""
        found = self.answers()
        with self._timed():
            return found | (held_out(self.trainer, self.languages) if self.reads_text else {})

    def answers(self) -> dict[str, float]:
        """Return the scores of the model's answers and its largest activations. All processes must call this.

        The latter are the largest absolute values of the states after each layer while it answers. They are left out
        for a model that torch compiles, because seeing them would compile it anew.
        """
        trainer = self.trainer
        if self.exam is None:
            return {}
        largest = torch.zeros(trainer.model.config.layers, device=trainer.world.device)
        noting = nullcontext() if trainer.compiles_loss else noting_largest(trainer.model, largest)
        with self._timed(), noting:
            found = self.exam.answered(trainer)
            reshard(trainer.model)
        if trainer.compiles_loss:
            return found
        each = trainer.world.largest(largest).tolist()
        return found | {f"largest_activation/layer_{layer}": value for layer, value in enumerate(each)}

    def at_step(self) -> dict[str, float]:
        """Return what the last step noted, the learning rates, and the share of steps so far that were clipped.

        It noted the loss of each source, and the norms of the gradients of each layer and each kind of weight before
        they were clipped. All processes must call this.
        """
        trainer, position = self.trainer, self.trainer.state.position
        assert trainer.noted is not None, "looks_at says which steps are looked at"
        with self._timed():
            sources = zip(trainer.plan.record.sources, trainer.noted.by_source(trainer.world), strict=False)
        found = {f"training_loss/{source.name}": nats / count for source, (nats, count) in sources if count}
        for name, norm in joined_norms(trainer.noted.gradients).items():
            found[f"gradient_norm/{name}"] = norm
        for name, optimizer in trainer.optimizers.items():
            for number, group in enumerate(optimizer.param_groups):
                found |= {f"learning_rate/{name}_{number}": group["lr"]} if "initial_lr" in group else {}
        return found | {"clipped_share": position.clipped_steps / max(1, position.step)}


@contextmanager
def noting_largest(model: Decoder, largest: Tensor) -> Iterator[None]:
    """Context manager in which each layer's largest absolute state is noted in `largest`, `[layers]`."""

    def note(layer: int, _: nn.Module, __: Any, made: tuple[Tensor, Any]) -> None:
        largest[layer] = torch.maximum(largest[layer], made[0].detach().abs().amax().float())

    hooks = [block.register_forward_hook(partial(note, layer)) for layer, block in enumerate(model.blocks)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def joined_norms(gradients: Mapping[str, float]) -> dict[str, float]:
    """Return the norm of all gradients of each layer and of each kind of weight, from those of the single weights.

    A layer is named `layer_0`, and a kind as in the layer, such as `attention.output`; other weights have their names.
    """
    squares: dict[str, float] = {}
    for name, norm in gradients.items():
        first, _, rest = name.partition(".")
        layer, _, kind = rest.partition(".")
        for joined in (f"layer_{layer}", kind) if first == "blocks" else (name,):
            squares[joined] = squares.get(joined, 0.0) + norm**2
    return {name: square**0.5 for name, square in squares.items()}


def trained_positions(plan: Plan, shape: ModelConfig) -> float:
    """Return how many positions a model could read in passes over rows of the last phase, instead of being trained."""
    trained = sum(
        phase.steps * phase.global_batch_tokens * shape.training_flops_per_token(phase.sequence_length)
        for phase in plan.phases
    )
    return trained / (PASS_SHARE * shape.training_flops_per_token(plan.record.sequence_length))


def within(
    items: Mapping[str, Sequence[WatchedItem]], length: int, positions: float
) -> dict[str, Sequence[WatchedItem]]:
    """Return equally many of the first items of each suite: as many as fill so many positions, and at least one."""

    def first(number: int) -> dict[str, Sequence[WatchedItem]]:
        return {suite: some[:number] for suite, some in items.items()}

    def filled(number: int) -> int:
        return length * num_rows([item for some in first(number).values() for item in some], length)

    numbers = range(1, max(map(len, items.values()), default=0) + 1)
    return first(max(1, bisect_right(numbers, positions, key=filled)))

"""The learning rate as a function of the step."""

from __future__ import annotations

from math import cos, pi

from torch.optim import Optimizer

from training.pretrain.optim.settings import Schedule, Scheduled, decay_steps


def learning_rate_factor(
    step: int,
    *,
    steps: int,
    schedule: Schedule,
    warmup_fraction: float,
    decay_fraction: float,
    final_fraction: float,
    warmup_of: int | None = None,
) -> float:
    """Return the factor of the peak learning rate at `step` (from 0). A pure function, so resuming needs no state.

    Linear warm-up reaches 1 at the last warm-up step. `cosine` and `linear` then fall to `final_fraction` at the last
    step; `wsd` stays at 1 and falls linearly over the last `decay_fraction` of all steps (arXiv 2404.06395). A training
    that continues one of `warmup_of` steps has the warm-up of that one.
    """
    warmup = round(warmup_fraction * (warmup_of or steps))
    if step < warmup:
        return (step + 1) / warmup
    decay = decay_steps(steps, decay_fraction) if schedule == "wsd" else max(1, steps - warmup)
    done = max(0, step + 1 - (steps - decay)) / decay  # above 0 to 1 over the fall
    if schedule == "cosine":
        return final_fraction + (1 - final_fraction) * (1 + cos(pi * done)) / 2
    if schedule in ("linear", "wsd"):
        return 1 - (1 - final_fraction) * done
    raise AssertionError(f"schedule {schedule} has no learning rate")


def scheduled_factor(step: int, *, steps: int, recipe: Scheduled, warmup_of: int | None = None) -> float:
    """Return `learning_rate_factor` with the schedule of a section of the recipe."""
    return learning_rate_factor(
        step,
        steps=steps,
        schedule=recipe.schedule,
        warmup_fraction=recipe.warmup_fraction,
        decay_fraction=recipe.decay_fraction,
        final_fraction=recipe.final_learning_rate_fraction,
        warmup_of=warmup_of,
    )


def set_learning_rates(optimizers: dict[str, Optimizer], factor: float) -> None:
    """Set the learning rate of every group to its peak rate times `factor`."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            if "initial_lr" in group:
                group["lr"] = factor * group["initial_lr"]

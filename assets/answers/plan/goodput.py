"""What a training on GPUs takes when machines fail, what published runs took, and other ways to spend the hours.

Interruptions are simulated: they come at random at a rate for each GPU; each loses the steps since the last checkpoint
and the minutes until training goes on. Goodput is the share of the time that is not lost so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, expm1, inf
from random import Random
from statistics import fmean, quantiles
from typing import Any

from assets.answers.plan.capacity import in_words, layouts
from resources.compute.size import Size
from training.pretrain.capacity.devices import DEVICES, Device, step_seconds
from training.pretrain.capacity.needs import Pretraining

# Llama 3 405B had 466 interruptions in 54 days of 16,384 GPUs (arXiv 2407.21783, section 3.3.4), and trained in more
# than 90 % of the time, so that one cost less than 17 minutes.
RATE, RESTART_MINUTES = 0.53, 10.0
MOST_DRAWN = 10_000  # interruptions of a training, beyond which the closed form is told
RUNS = 400  # simulated; the ends of the interval are then within a few percent
MOST_LOST = 20.0  # times the undisturbed seconds, beyond which a training is told not to end
DAY = 86_400.0
SPOT = "the same on spot machines"

# Model operations over all booked hours, as a share of the peak of an H100 in bf16. Llama 3: 15e12 tokens in 1.3 and in
# 6.4 million GPU-hours (its model card); SmolLM3: 11.2e12 tokens on 384 GPUs in 24 days (its announcement).
PUBLISHED = {"Llama 3 8B": 0.17, "SmolLM3 3B": 0.29, "Llama 3 70B": 0.30}

OF_A_ROW = (
    *("interruptions", "seconds", "seconds_5_percent", "seconds_95_percent"),
    *("goodput", "gpu_hours", "price"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruptions:
    """How often a training is interrupted and what that costs.

    rate: interruptions per 1,000 GPU-days.
    restart_minutes: from an interruption to the next step.
    spot_rate: the rate of machines that their owner takes back; None: not asked.
    """

    rate: float = RATE
    restart_minutes: float = RESTART_MINUTES
    spot_rate: float | None = None


def goodput(
    trainings: Sequence[Pretraining], operations: float, size: Size, gpu: Device, asked: Interruptions, *, mfu: float
) -> dict[str, Any]:
    """Return a training's time with interruptions, the GPU-hours of published runs, and alternatives side by side.

    `trainings` has one for each phase, `operations` are of all of them, `mfu` is that of compute alone.
    """
    profile = _row("as the profile has it", trainings, size, gpu, asked.rate, asked, mfu)
    hours = {name: operations / (share * gpu.teraflops * 1e12 * 3600) for name, share in PUBLISHED.items()}
    others = _alternatives(trainings, size, gpu, asked, mfu)
    return {
        "rate": asked.rate,
        "restart_minutes": asked.restart_minutes,
        "published_gpu_hours": {name: round(one, 1) for name, one in hours.items()},
        "rows": [one for one in (profile, *others) if one is not None],
    }


def interrupted(seconds: float, *, every: float, lost: float, between: float) -> tuple[float, list[float]]:
    """Return the mean number of interruptions and the seconds of RUNS simulated trainings, in order.

    seconds: without interruptions; every: between checkpoints; lost: until training goes on; between: mean time from
    one interruption to the next.
    """
    drawn, ends, count = Random(0), list[float](), 0
    for _ in range(RUNS):
        done = clock = 0.0
        while (works := drawn.expovariate(1 / between)) < seconds - done:
            count += 1
            done += works // every * every
            clock += works
            while (again := drawn.expovariate(1 / between)) < lost:  # before training goes on
                count, clock = count + 1, clock + again
            clock += lost
        ends.append(clock + seconds - done)
    return count / RUNS, sorted(ends)


def expected_seconds(seconds: float, *, every: float, lost: float, between: float) -> float:
    """Return the mean of `interrupted` in closed form (Daly 2006, https://doi.org/10.1016/j.future.2004.11.016)."""
    piece = min(every, seconds)
    try:
        return between * exp(lost / between) * expm1(piece / between) * seconds / piece
    except OverflowError:
        return inf


def _row(
    what: str, trainings: Sequence[Pretraining], size: Size, gpu: Device, rate: float, asked: Interruptions, mfu: float
) -> dict[str, Any] | None:
    """Return one way to train; None if a layout does not divide the batch.

    Its times are those of the machines' hours that are booked; all are None if it would take MOST_LOST times as long.
    """
    try:
        seconds = sum(one.phase.steps * step_seconds(one, size, gpu, mfu=mfu) for one in trainings)
    except ValueError:
        return None
    gpus, nodes = size.nodes * size.gpus_per_node, size.nodes + size.spare_nodes
    how = {
        "every": size.checkpoint_seconds,
        "lost": 60 * asked.restart_minutes,
        "between": 1000 * DAY / (rate * gpus) if rate else inf,
    }
    told = {"what": what, "gpu": gpu.name, "gpus": gpus, "layout": in_words(size), "undisturbed_seconds": seconds}
    if expected_seconds(seconds, **how) > MOST_LOST * seconds:
        return told | dict.fromkeys(OF_A_ROW)
    expected = expected_seconds(seconds, **how) if rate else seconds
    count, ends = expected / how["between"], [expected] * RUNS  # of so many the interval is narrow
    if 0 < count <= MOST_DRAWN:
        count, ends = interrupted(seconds, **how)
    mean, (low, *_, high) = fmean(ends), quantiles(ends, n=20)
    price = mean / 3600 * nodes * size.price_per_hour if size.price_per_hour and size.gpu in (None, gpu.name) else None
    gpu_hours = mean / 3600 * nodes * size.gpus_per_node
    return told | dict(zip(OF_A_ROW, (count, mean, low, high, seconds / mean, gpu_hours, price), strict=True))


def _alternatives(
    trainings: Sequence[Pretraining], size: Size, gpu: Device, asked: Interruptions, mfu: float
) -> Iterator[dict[str, Any] | None]:
    """Yield other ways to train: the fastest layout, spot machines, half and twice the nodes, other kinds of GPU."""
    widest = max(trainings, key=lambda one: one.phase.global_batch_tokens)
    ways = [("fastest layout", size.nodes, gpu, asked.rate)]
    ways += [(SPOT, size.nodes, gpu, asked.spot_rate)] if asked.spot_rate is not None else []
    ways += [
        (f"{word} the nodes", round(size.nodes * by), gpu, asked.rate) for word, by in (("half", 0.5), ("twice", 2))
    ]
    ways += [("another kind", size.nodes, one, asked.rate) for one in DEVICES.values() if one is not gpu]
    for what, nodes, kind, rate in ways:
        price = size.price_per_hour if kind is gpu and what != SPOT else None  # it is that of the profile's machines
        if nodes and (fit := layouts(widest, replace(size, nodes=nodes, price_per_hour=price), kind, mfu=mfu)):
            yield _row(what, trainings, fit[0][0], kind, rate, asked, mfu)

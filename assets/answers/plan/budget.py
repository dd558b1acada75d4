"""What a budget buys: model size and tokens by published fits and by the recipe's own ladder, and the data it takes.

A budget is in floating-point operations, of which training takes 6 for each weight and token and serving 2. The loss of
N weights after D tokens is that of a `Law`; each fit splits the budget where its loss is lowest. A fit says little
outside the sizes that it was made on, and every answer says whether it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt
from typing import Any

from evaluation.report.scaling import Law, Rung, fit, interval, resampled
from training.contract.records import RecipeError
from training.pretrain.capacity.devices import Device

TRAINING, SERVING = 6, 2  # operations for a weight and a token
TOKENS_A_WEIGHT = 20  # the rule of thumb that is read from Hoffmann et al.
LEAST_WEIGHTS = 1e5  # a smaller model is none of language
# Muennighoff et al. (arXiv 2305.16264): what a repeated token is worth decays with this number of repetitions.
REPETITIONS = 15.39
ENDLESS = 1e200  # instead of inf, with which the search cannot reckon
LARGER = 5.0  # at most, of the logarithm of the best size where tokens are repeated
WORTHWHILE_EPOCHS = 4  # the same paper: up to here repeated tokens are worth almost as much as new ones
PRICES = {"H100": 3.0}  # of a GPU-hour, as nanochat's README reckons (2026-03)
JOULES_A_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A scaling law, the sizes of the models that it was made on, the unit of its loss, and laws of other draws."""

    name: str
    law: Law
    sizes: tuple[float, float]
    unit: str = "nats a token"  # of the tokens of the paper
    others: tuple[Law, ...] = ()


OF_HOFFMANN = (44e6, 16e9)
PUBLISHED_FITS = (
    # arXiv 2203.15556, approach 3.
    Fit(
        name="Hoffmann 2022",
        law=Law(irreducible=1.69, size=406.4, data=410.7, alpha=0.34, beta=0.28),
        sizes=OF_HOFFMANN,
    ),
    # arXiv 2404.10102, the same models fitted again.
    Fit(
        name="Besiroglu 2024",
        law=Law(irreducible=1.8172, size=482.01, data=2085.43, alpha=0.3478, beta=0.3658),
        sizes=OF_HOFFMANN,
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Purpose:
    """What is to be spent, and on what.

    flops: operations of training. money: what they cost instead, at `gpu_hour_price` an hour of the GPU `device`, which
    does `mfu` of its peak; None: as in PRICES. served_tokens: tokens that the model reads and writes in its life; 0:
    not asked. unique_tokens: how many there are to train on; None: not known. pue: electricity of the site for each
    unit of the GPUs. grams_per_kwh: emissions of CO2; None: not stated.
    """

    flops: float | None = None
    money: float | None = None
    device: Device | None = None
    mfu: float = 0.5
    gpu_hour_price: float | None = None
    served_tokens: float = 0.0
    unique_tokens: float | None = None
    pue: float = 1.0
    grams_per_kwh: float | None = None

    def __post_init__(self) -> None:
        if (self.flops is None) == (self.money is None):
            raise RecipeError("a budget is either --budget (operations) or --money; give one of them")
        if self.money is not None and self.device is None:
            raise RecipeError("--money needs --gpu, the kind of GPU whose hours it buys, such as --gpu H100")
        if self.device is None and self.gpu_hour_price is not None:
            raise RecipeError("--gpu-hour-price needs --gpu, the kind of GPU that costs so much")
        if self.money is not None and self.device is not None and self.price is None:
            raise RecipeError(f"--money needs --gpu-hour-price, what an hour of an {self.device.name} costs")
        if self.grams_per_kwh is not None and self.device is None:
            raise RecipeError("--grams-per-kwh needs --gpu, the kind of GPU whose electricity is meant")

    @property
    def operations(self) -> float:
        """The operations of training that the budget pays for."""
        if self.flops is not None:
            return self.flops
        assert self.money is not None and self.price is not None
        return self.money / self.price * self.operations_an_hour

    @property
    def price(self) -> float | None:
        """The price of a GPU-hour; None if nobody stated it."""
        known = PRICES.get(self.device.name) if self.device is not None else None
        return known if self.gpu_hour_price is None else self.gpu_hour_price

    @property
    def operations_an_hour(self) -> float:
        """Operations of a GPU-hour."""
        assert self.device is not None
        return 3600 * self.device.teraflops * 1e12 * self.mfu


def bought(purpose: Purpose, own: Fit | None = None) -> dict[str, Any]:
    """Return what the budget buys by the rule of thumb, by the published fits and by `own`, the recipe's ladder.

    Raise RecipeError if it buys no language model.
    """
    flops = purpose.operations
    if (weights := sqrt(flops / (TRAINING * TOKENS_A_WEIGHT))) < LEAST_WEIGHTS:
        raise RecipeError(
            f"{flops:.3g} operations buy {weights:,.0f} weights and {TOKENS_A_WEIGHT} tokens for each, no language"
            f" model; {TRAINING * TOKENS_A_WEIGHT * LEAST_WEIGHTS**2:.2g} are the least that is reckoned with"
        )
    rule = _row(f"{TOKENS_A_WEIGHT} tokens a weight", weights, flops, purpose)
    fits = (*PUBLISHED_FITS, *([own] if own else []))
    return {
        "flops": flops,
        **_spent(purpose, flops),
        "unique_tokens": purpose.unique_tokens,
        "served_tokens": purpose.served_tokens or None,
        "rows": [rule, *(row for one in fits for row in _rows(one, flops, purpose))],
    }


def own_fit(result: Mapping[str, Any], *, resamplings: int, seed: int) -> Fit:
    """Return the fit of a recipe's ladder from its `scaling.json`; its loss is in bits per byte."""
    rungs = [Rung(**{name: one[name] for name in ("name", "parameters", "tokens", "loss")}) for one in result["rungs"]]
    sizes = [rung.parameters for rung in rungs]
    law = fit(rungs)
    others = tuple(resampled(rungs, law, resamplings, seed))
    return Fit(name="own ladder", law=law, sizes=(min(sizes), max(sizes)), unit="bits per byte", others=others)


def worth(tokens: float, unique: float) -> float:
    """Return how many tokens read once teach as much as `tokens` drawn from `unique` ones, again and again."""
    if tokens <= unique:
        return tokens
    return unique * (1 + REPETITIONS * (1 - exp(-(tokens / unique - 1) / REPETITIONS)))


def read_for(wanted: float, unique: float) -> float:
    """Return how many tokens, repeated ones counted, are worth as much as `wanted` ones read once; the most is inf."""
    if wanted <= unique:
        return wanted
    left = 1 - (wanted / unique - 1) / REPETITIONS
    return unique * (1 - REPETITIONS * log(left)) if left > 0 else inf


def best_size(law: Law, flops: float, unique: float = inf) -> float:
    """Return the size with the lowest loss, where tokens beyond the unique ones are repeated."""
    size = law.best_parameters(flops)
    if not isfinite(size) or flops / (TRAINING * size) <= unique:
        return size
    return _lowest(
        lambda one: float(law.loss(one, worth(flops / (TRAINING * one), unique))), log(size), log(size) + LARGER
    )


def best_when_served(law: Law, flops: float, served: float, unique: float = inf) -> tuple[float, float]:
    """Return size and tokens of the model that is as good as the budget's best, for the least operations in its life.

    Life is training and the tokens that it is served for (Sardana et al., arXiv 2401.00448).
    """
    largest = best_size(law, flops, unique)
    loss = float(law.loss(largest, worth(flops / (TRAINING * largest), unique)))

    def tokens(size: float) -> float:
        left = loss - law.irreducible - law.size * size**-law.alpha
        return read_for((law.data / left) ** (1 / law.beta), unique) if left > 0 else inf

    most = law.data * (unique * (1 + REPETITIONS)) ** -law.beta  # what is lost however often the tokens are read
    least = (law.size / (loss - law.irreducible - most)) ** (1 / law.alpha)
    size = _lowest(lambda one: one * (TRAINING * tokens(one) + SERVING * served), log(least), log(largest))
    return size, tokens(size)


def _rows(one: Fit, flops: float, purpose: Purpose) -> Iterator[dict[str, Any]]:
    """Yield the best split by a fit, then those for the data that there are and for the tokens that are served."""
    law, unique, served = one.law, purpose.unique_tokens or inf, purpose.served_tokens
    size, held = best_size(law, flops), best_size(law, flops, unique)
    if not isfinite(size):
        yield {"by": one.name, "without": "the loss hardly falls with size, so that no size is the best"}
        return
    yield _row(one.name, size, flops, purpose, one) | _intervals(one, size, flops, unique)
    if held != size:
        yield _row(f"{one.name}, repeating", held, flops, purpose, one)
    if served:
        size, tokens = best_when_served(law, flops, served, unique)
        spent = TRAINING * size * tokens
        saved = 1 - (spent + SERVING * size * served) / (flops + SERVING * held * served)
        yield _row(f"{one.name}, served", size, spent, purpose, one) | {"saved": saved}


def _intervals(one: Fit, size: float, flops: float, unique: float) -> dict[str, list[float]]:
    """Return the intervals of size and loss, by the fit's other draws; nothing for a fit without any."""
    if not one.others:
        return {}
    read_once = worth(flops / (TRAINING * size), unique)
    losses = [float(law.loss(size, read_once)) for law in one.others]
    sizes = [law.best_parameters(flops) for law in one.others]
    return {"parameters_interval": interval(sizes), "loss_interval": interval(losses)}


def _row(by: str, size: float, flops: float, purpose: Purpose, fit_: Fit | None = None) -> dict[str, Any]:
    """Return a model of this size that is trained with so many operations, and what it asks of data and GPUs."""
    tokens, unique = flops / (TRAINING * size), purpose.unique_tokens or inf
    read_once = worth(tokens, unique)
    return {
        "by": by,
        "parameters": size,
        "tokens": tokens,
        "epochs": tokens / unique if isfinite(unique) else None,
        "worth": read_once,
        "loss": float(fit_.law.loss(size, read_once)) if fit_ else None,
        "loss_unit": fit_.unit if fit_ else None,
        "is_outside": fit_ is not None and not fit_.sizes[0] <= size <= fit_.sizes[1],
        **_spent(purpose, flops),
    }


def _spent(purpose: Purpose, flops: float) -> dict[str, float | None]:
    """Return GPU-hours, price, electricity (kWh) and emissions (kg of CO2) of so many operations; None if not known."""
    if purpose.device is None:
        return dict.fromkeys(("gpu_hours", "price", "kwh", "kilograms"))
    hours = flops / purpose.operations_an_hour
    kwh = hours * 3600 * purpose.device.watts * purpose.pue / JOULES_A_KWH
    grams = purpose.grams_per_kwh
    kilograms = None if grams is None else kwh * grams / 1000
    price = None if purpose.price is None else hours * purpose.price
    return {"gpu_hours": hours, "price": price, "kwh": kwh, "kilograms": kilograms}


def _lowest(of: Callable[[float], float], low: float, high: float) -> float:
    """Return the size whose logarithm lies between these and at which a function with one minimum is lowest."""
    from scipy.optimize import minimize_scalar

    def bounded(logarithm: float) -> float:
        return min(of(exp(logarithm)), ENDLESS)

    found = minimize_scalar(bounded, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return exp(float(found.x))

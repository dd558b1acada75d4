"""Stage `scaling`: how the held-out loss of a ladder of small models falls with their size and tokens.

The models are analysed in two ways, as in Hoffmann et al. (arXiv 2203.15556).

- The parametric fit is L(N, D) = E + A / N^alpha + B / D^beta. It minimizes the Huber loss of the difference of
  logarithms over all models. It gives the best split of a compute budget C = 6 N D, and predicts the loss of a model
  that was not trained.
- The IsoFLOP analysis fits a parabola to the models of each budget and takes its minimum.

Intervals are the 2.5th and 97.5th percentiles over resampled rungs, a step that a re-examination of that paper found
missing (arXiv 2404.10102).

N is the number of trained parameters and D the number of tokens seen. The loss is held-out bits per byte, on the same
documents for every rung.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from training.contract.artifact import write_json, written
from training.contract.job import DataError, Gate, Job, Outcome, Work
from training.recipe.settings.ladder import MIN_RUNGS, LadderRecipe

LOSS = "held_out_bits_per_byte"
HUBER = 1e-3  # larger differences of logarithms count linearly
SAME_BUDGET = 0.05  # relative tolerance; models of one budget rarely train for exactly the same FLOP
EXPONENTS = np.linspace(0.02, 1.5, 75)  # where the search for alpha and beta begins
INTERVAL = (2.5, 97.5)
LARGEST_LOGARITHM = 700
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")
RESULT_FILE, PAGE_FILE = "scaling.json", "scaling.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """A trained model of the scaling ladder: parameters, tokens seen, held-out loss in bits per byte."""

    name: str
    parameters: float
    tokens: float
    loss: float

    @property
    def flops(self) -> float:
        """The training compute in floating-point operations, 6 N D."""
        return 6 * self.parameters * self.tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """A scaling law: L(N, D) = irreducible + size / N^alpha + data / D^beta, for N parameters and D tokens."""

    irreducible: float
    size: float
    data: float
    alpha: float
    beta: float

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Return the loss of a model with `parameters` parameters after `tokens` tokens; both are numbers or arrays."""
        return self.irreducible + self.size * parameters**-self.alpha + self.data * tokens**-self.beta

    def best_parameters(self, flops: float) -> float:
        """Return the model size with the lowest loss for a budget of 6 N D = `flops`.

        The size is infinite if the law is so flat that no float can hold it.
        """
        total = self.alpha + self.beta
        ratio = math.log(self.alpha * self.size) - math.log(self.beta * self.data)
        logarithm = (ratio + self.beta * math.log(flops / 6)) / total
        return math.exp(logarithm) if logarithm < LARGEST_LOGARITHM else math.inf


def run(job: Job, work: Work) -> Outcome:
    """Fit the recipe's ladder, and write the results and the page."""
    recipe = job.settings_as(LadderRecipe, "ladder")
    predicted = job.settings["predicted"]
    rungs = [_rung(item.partition, item.record()["metrics"]) for item in job.inputs_of("ladder_model")]
    result = scaling(rungs, predicted, resamplings=recipe.bootstrap, seed=recipe.seed)
    write_json(work.path / RESULT_FILE, result)
    with written(work.path / PAGE_FILE, "w") as stream:
        stream.write(page(result))
    law = result["law"]
    return Outcome(
        files=(RESULT_FILE, PAGE_FILE),
        metrics={
            "rungs": len(rungs),
            "alpha": law["alpha"],
            "beta": law["beta"],
            "irreducible": law["irreducible"],
            "predicted_bits_per_byte": result["predicted"]["loss"],
            "largest_relative_error": result["largest_relative_error"],
        },
        gates=(falls_gate(rungs, Law(**law)),),
    )


def _rung(partition: str, metrics: dict[str, float]) -> Rung:
    name = partition.partition("@")[2]
    if not metrics.get(LOSS, 0) > 0:
        raise DataError(f"ladder_model {name}: no held-out loss; set mixture.held_out_fraction above 0")
    return Rung(name=name, parameters=metrics["parameters"], tokens=metrics["tokens"], loss=metrics[LOSS])


def falls_gate(rungs: Sequence[Rung], law: Law) -> Gate:
    """Return the gate that the fitted loss decreases with model size and with tokens over the range of the ladder.

    A fit without this property cannot be used for prediction.
    """
    smallest, largest = (pick(rung.parameters for rung in rungs) for pick in (min, max))
    fewest, most = (pick(rung.tokens for rung in rungs) for pick in (min, max))
    highest = max(rung.loss for rung in rungs)
    by_size = law.size * (smallest**-law.alpha - largest**-law.alpha) / highest
    by_tokens = law.data * (fewest**-law.beta - most**-law.beta) / highest
    return Gate(
        name="loss_falls_with_size_and_tokens",
        passed=bool(by_size > HUBER and by_tokens > HUBER),
        evidence={"fall_by_size": by_size, "fall_by_tokens": by_tokens, "least": HUBER},
    )


def scaling(rungs: Sequence[Rung], predicted: dict[str, float], *, resamplings: int, seed: int) -> dict[str, Any]:
    """Return all results of a ladder's fits, as plain data. Raise DataError if there are too few rungs for a fit."""
    if len({(rung.parameters, rung.tokens) for rung in rungs}) < MIN_RUNGS:
        raise DataError(f"a ladder of fewer than {MIN_RUNGS} different models; its fit has five numbers")
    law = fit(rungs)
    others = resampled(rungs, law, resamplings, seed)
    flops = 6 * predicted["parameters"] * predicted["tokens"]
    laws = [law, *others]
    fields = {name: [getattr(one, name) for one in others] for name in asdict(law)}
    target = [float(one.loss(predicted["parameters"], predicted["tokens"])) for one in laws]
    best = [one.best_parameters(flops) for one in laws]
    errors = [abs(rung.loss / float(law.loss(rung.parameters, rung.tokens)) - 1) for rung in rungs]
    return {
        "rungs": [asdict(rung) | {"flops": rung.flops} for rung in rungs],
        "law": asdict(law),
        "intervals": {name: interval(values) for name, values in fields.items()},
        "resamplings": len(others),
        "largest_relative_error": max(errors),
        "predicted": {**predicted, "loss": target[0], "interval": interval(target[1:])},
        "best_split": {
            "flops": flops,
            "parameters": best[0] if math.isfinite(best[0]) else None,
            "interval": interval(best[1:]),
            "size_exponent": law.beta / (law.alpha + law.beta),
            "size_exponent_interval": interval([one.beta / (one.alpha + one.beta) for one in others]),
        },
        "iso_flop": iso_flop(rungs, resamplings=resamplings, seed=seed),
    }


def interval(values: Sequence[float]) -> list[float]:
    """Return the 2.5th and 97.5th percentiles; empty without values, or if a value is not finite."""
    if not values or not np.isfinite(values).all():
        return []
    return [float(bound) for bound in np.percentile(values, INTERVAL)]


# The parametric fit.


def fit(rungs: Sequence[Rung], start: Law | None = None) -> Law:
    """Return the law of the rungs: the best law of a grid, or `start`, refined in all five numbers at once."""
    from scipy.optimize import minimize

    sizes, tokens, losses = (
        np.array([getattr(rung, name) for rung in rungs]) for name in ("parameters", "tokens", "loss")
    )
    first = start or _grid(sizes, tokens, losses)
    # A term that starts at 0 has no gradient by which it could grow.
    least = 0.01 * losses.min()
    begin = np.array(
        [
            math.log(max(first.irreducible, least)),
            math.log(max(first.size, least * math.exp(first.alpha * np.log(sizes).mean()))),
            math.log(max(first.data, least * math.exp(first.beta * np.log(tokens).mean()))),
            first.alpha,
            first.beta,
        ]
    )
    found = minimize(
        _objective, begin, args=(np.log(sizes), np.log(tokens), np.log(losses)), jac=True, method="L-BFGS-B",
        bounds=[(-30, 5), (-30, 40), (-30, 40), (0.001, 3), (0.001, 3)],
        options={"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-10},
    )  # fmt: skip
    e, a, b, alpha, beta = found.x
    return Law(irreducible=math.exp(e), size=math.exp(a), data=math.exp(b), alpha=float(alpha), beta=float(beta))


def _grid(sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray) -> Law:
    """Return the law with the smallest relative error among pairs of exponents on a grid.

    For each pair, the law is linear in the other three numbers.
    """
    from scipy.optimize import nnls

    best = (math.inf, Law(irreducible=float(losses.min()), size=1.0, data=1.0, alpha=0.3, beta=0.3))
    for alpha, beta in itertools.product(EXPONENTS[::3], EXPONENTS[::3]):
        columns = np.stack([np.ones_like(losses), sizes**-alpha, tokens**-beta], axis=1) / losses[:, None]
        scale = columns.max(axis=0)
        values, error = nnls(columns / scale, np.ones_like(losses))
        if error < best[0]:
            e, a, b = values / scale
            best = error, Law(irreducible=float(e), size=float(a), data=float(b), alpha=float(alpha), beta=float(beta))
    return best[1]


def _objective(x: np.ndarray, sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the Huber loss of log L(N, D) - log L, summed over rungs, and its gradient by `x`.

    `sizes`, `tokens` and `losses` are logarithms; `x` is log E, log A, log B, alpha, beta.
    """
    e, a, b, alpha, beta = x
    terms = np.stack([np.full_like(sizes, e), a - alpha * sizes, b - beta * tokens])
    highest = terms.max(axis=0)
    shares = np.exp(terms - highest)
    difference = highest + np.log(shares.sum(axis=0)) - losses
    shares /= shares.sum(axis=0)
    small = np.abs(difference) <= HUBER
    value = np.where(small, 0.5 * difference**2, HUBER * (np.abs(difference) - 0.5 * HUBER)).sum()
    slope = np.clip(difference, -HUBER, HUBER)
    by_term = shares * slope
    gradient = [
        by_term[0].sum(),
        by_term[1].sum(),
        by_term[2].sum(),
        -(by_term[1] * sizes).sum(),
        -(by_term[2] * tokens).sum(),
    ]
    # Unscaled values are of the order of HUBER squared, where the optimizer's tolerances stop it at once.
    return float(value) / HUBER**2, np.array(gradient) / HUBER**2


def resampled(rungs: Sequence[Rung], law: Law, times: int, seed: int) -> list[Law]:
    """Return the laws of rungs drawn with replacement. A draw with too few different rungs is repeated."""
    generator = np.random.default_rng(seed)
    laws: list[Law] = []
    while len(laws) < times:
        drawn = generator.integers(len(rungs), size=len(rungs))
        if len(set(drawn.tolist())) >= min(MIN_RUNGS - 1, len(rungs) - 1):
            laws.append(fit([rungs[i] for i in drawn], start=law))
    return laws


# The IsoFLOP analysis.


def iso_flop(rungs: Sequence[Rung], *, resamplings: int, seed: int) -> dict[str, Any]:
    """Return the best model size of each compute budget, and how it grows with the budget: N = scale * C^exponent.

    A budget needs three sizes or more. Its best size is the minimum of a parabola of the loss over log N; a minimum
    outside the sizes tried is left out. Intervals come from drawing the models of each budget with replacement. If
    there is no exponent or no interval, `without` says why.
    """
    groups = _budgets(rungs)
    budgets = [_budget(members) for members in groups]
    used = [(group, budget) for group, budget in zip(groups, budgets, strict=True) if "parameters" in budget]
    if len(used) < 2:
        reason = f"{len(used)} budgets with a lowest point among three sizes or more; an exponent needs two"
        return {"budgets": budgets, "without": reason}
    exponent, scale = _growth([budget["flops"] for _, budget in used], [budget["parameters"] for _, budget in used])
    found: dict[str, Any] = {"budgets": budgets, "size_exponent": exponent, "scale": scale}
    found["size_exponent_interval"] = []
    if min(len({rung.parameters for rung in group}) for group, _ in used) < 4:
        # A draw from three models that has three different ones gives the same parabola every time.
        return found | {"without": "a budget of three sizes has one parabola; four or more show how sure it is"}
    generator = np.random.default_rng(seed)
    drawn = [[_drawn_lowest(group, generator) for group, _ in used] for _ in range(resamplings)]
    for number, (_, budget) in enumerate(used):
        budget["interval"] = interval([sizes[number] for sizes in drawn])
    exponents = [_growth([budget["flops"] for _, budget in used], sizes)[0] for sizes in drawn]
    found["size_exponent_interval"] = interval(exponents)
    if not found["size_exponent_interval"]:
        none = sum(not math.isfinite(value) for value in exponents)
        found["without"] = f"{none} of {resamplings} resamplings have a parabola without a lowest point"
    return found


def _budget(members: Sequence[Rung]) -> dict[str, Any]:
    """Return the fit of the ladder's models with one compute budget, as plain data.

    It has `parameters` and `loss` of the minimum if that lies within the sizes tried.
    """
    flops = float(np.exp(np.mean(np.log([rung.flops for rung in members]))))
    sizes = [rung.parameters for rung in members]
    curve, lowest = _lowest(members)
    said = {"flops": flops, "rungs": [rung.name for rung in members], "curve": [float(value) for value in curve]}
    if min(sizes) <= lowest <= max(sizes):
        said |= {"parameters": lowest, "loss": float(np.polyval(curve, math.log(lowest))), "interval": []}
    return said


def _lowest(members: Sequence[Rung]) -> tuple[np.ndarray, float]:
    """Return the parabola of the loss over log N, and the size at its minimum; NaN if it has no minimum."""
    curve = np.polyfit(np.log([rung.parameters for rung in members]), [rung.loss for rung in members], 2)
    if curve[0] <= 0:
        return curve, math.nan
    logarithm = float(-curve[1] / (2 * curve[0]))
    return curve, math.exp(logarithm) if abs(logarithm) < LARGEST_LOGARITHM else math.nan


def _drawn_lowest(group: Sequence[Rung], generator: np.random.Generator) -> float:
    """Draw models of one budget with replacement, until they have three different sizes; return their best size."""
    while True:
        members = [group[i] for i in generator.integers(len(group), size=len(group))]
        if len({rung.parameters for rung in members}) >= 3:
            return _lowest(members)[1]


def _growth(flops: Sequence[float], parameters: Sequence[float]) -> tuple[float, float]:
    """Return exponent and scale of N = scale * C^exponent; NaN if a size is not finite."""
    if not np.isfinite(parameters).all():
        return math.nan, math.nan
    exponent, offset = np.polyfit(np.log(flops), np.log(parameters), 1)
    return float(exponent), math.exp(offset)


def _budgets(rungs: Sequence[Rung]) -> list[list[Rung]]:
    """Return groups of at least three model sizes with nearly the same compute budget.

    Their budgets lie within SAME_BUDGET of the group's smallest.
    """
    groups: list[list[Rung]] = []
    for rung in sorted(rungs, key=lambda one: one.flops):
        if groups and rung.flops <= groups[-1][0].flops * (1 + SAME_BUDGET):
            groups[-1].append(rung)
        else:
            groups.append([rung])
    return [group for group in groups if len({rung.parameters for rung in group}) >= 3]


# The page.


def figure(result: dict[str, Any]) -> dict[str, Any]:
    """Return plotly's JSON: each rung's loss over its compute, the law for the same models, and the predicted model."""
    rungs = sorted(result["rungs"], key=lambda rung: (rung["parameters"], rung["tokens"]))
    law = Law(**result["law"])
    traces: list[dict[str, Any]] = []
    for parameters, group in itertools.groupby(rungs, key=lambda rung: rung["parameters"]):
        members = list(group)
        name = f"{parameters:,.0f} parameters"
        points = {"x": [rung["flops"] for rung in members], "y": [rung["loss"] for rung in members]}
        traces.append({"type": "scatter", "mode": "markers", "name": name, **points})
        tokens = np.geomspace(min(r["tokens"] for r in members) / 2, max(r["tokens"] for r in members) * 2, 40)
        line = {"x": (6 * parameters * tokens).tolist(), "y": law.loss(parameters, tokens).tolist()}
        traces.append({"type": "scatter", "mode": "lines", "name": f"law, {name}", "line": {"width": 1}, **line})
    target = result["predicted"]
    bounds = target["interval"] or [target["loss"], target["loss"]]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [bounds[1] - target["loss"]],
        "arrayminus": [target["loss"] - bounds[0]],
    }
    at = {"x": [6 * target["parameters"] * target["tokens"]], "y": [target["loss"]], "error_y": error}
    traces.append(
        {"type": "scatter", "mode": "markers", "name": "predicted", "marker": {"symbol": "star", "size": 12}, **at}
    )
    layout: dict[str, Any] = {
        "xaxis": {"type": "log", "title": {"text": "training compute, FLOP"}},
        "yaxis": {"title": {"text": "held-out bits per byte"}},
        "height": 520,
    }
    if result["iso_flop"]["budgets"]:
        traces += _parabolas(result)
        layout |= {
            "grid": {"rows": 1, "columns": 2, "pattern": "independent"},
            "xaxis2": {"type": "log", "title": {"text": "parameters, at equal compute"}},
            "yaxis2": {},
            "legend": {"orientation": "h", "y": -0.2},
            "height": 680,
        }
    return {"data": traces, "layout": layout}


def _parabolas(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the traces of the second panel: each budget's models, their parabola, and its minimum."""
    by_name = {rung["name"]: rung for rung in result["rungs"]}
    traces: list[dict[str, Any]] = []
    for color, budget in zip(itertools.cycle(COLORS), result["iso_flop"]["budgets"], strict=False):
        members = [by_name[name] for name in budget["rungs"]]
        sizes = [rung["parameters"] for rung in members]
        along = np.geomspace(min(sizes) / 1.2, max(sizes) * 1.2, 60)
        drawn: list[dict[str, Any]] = [
            {"mode": "markers", "x": sizes, "y": [rung["loss"] for rung in members]},
            {"mode": "lines", "x": along.tolist(), "y": np.polyval(budget["curve"], np.log(along)).tolist()},
        ]
        if "parameters" in budget:
            at = {"x": [budget["parameters"]], "y": [budget["loss"]], "marker": {"symbol": "diamond", "size": 12}}
            drawn.append({"mode": "markers", **at, **_bars(budget)})
        name = f"{budget['flops']:.2e} FLOP"
        for part, trace in zip(("", ", parabola", ", lowest point"), drawn, strict=False):
            marker = {"color": color, **trace.pop("marker", {})}
            common = {"type": "scatter", "xaxis": "x2", "yaxis": "y2", "name": name + part, "line": {"color": color}}
            traces.append({**common, **trace, "marker": marker})
    return traces


def _bars(budget: dict[str, Any]) -> dict[str, Any]:
    if not budget["interval"]:
        return {}
    low, high = budget["interval"]
    beyond = {"array": [max(0.0, high - budget["parameters"])], "arrayminus": [max(0.0, budget["parameters"] - low)]}
    return {"error_x": {"type": "data", "symmetric": False, **beyond}}


def page(result: dict[str, Any]) -> str:
    """Return one self-contained HTML page: the figure, the law with its intervals, and the predicted loss."""
    from markupsafe import Markup

    from evaluation.report.pages import environment, plotly_script

    return (
        environment()
        .get_template("scaling.html.j2")
        .render(result=result, figure=figure(result), plotly=Markup(plotly_script()))
    )

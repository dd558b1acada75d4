"""Scaling laws: planted ones are found again, from points and through the stage."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from evaluation.report.scaling import HUBER, Law, Rung, _objective, figure, fit, iso_flop, page, resampled, scaling
from evaluation.stages import STAGES
from tests.evaluation.conftest import commit, make_job
from training.contract.job import DataError
from training.contract.running.runner import run_job

PLANTED = Law(irreducible=0.6, size=40.0, data=90.0, alpha=0.34, beta=0.28)
SIZES = (1e6, 3e6, 1e7, 3e7, 1e8)
TOKENS = (2e7, 6e7, 2e8, 6e8, 2e9)


def ladder(noise: float = 0.0, seed: int = 0) -> list[Rung]:
    generator = np.random.default_rng(seed)
    return [
        Rung(name=f"r{i}", parameters=n, tokens=d, loss=PLANTED.loss(n, d) * float(np.exp(noise * generator.normal())))
        for i, (n, d) in enumerate(itertools.product(SIZES, TOKENS))
    ]


def test_a_planted_law_is_found_again():
    law = fit(ladder())
    for name in ("irreducible", "size", "data", "alpha", "beta"):
        assert getattr(law, name) == pytest.approx(getattr(PLANTED, name), rel=2e-3), name


def test_noise_moves_it_within_its_interval():
    rungs = ladder(noise=0.002, seed=3)
    law = fit(rungs)
    assert law.alpha == pytest.approx(0.34, abs=0.03) and law.beta == pytest.approx(0.28, abs=0.03)
    others = resampled(rungs, law, 30, seed=1)
    for name in ("alpha", "beta", "irreducible"):
        low, high = np.percentile([getattr(one, name) for one in others], (2.5, 97.5))
        assert low <= getattr(PLANTED, name) <= high, name
    assert others[:3] == resampled(rungs, law, 3, seed=1) != resampled(rungs, law, 3, seed=2)


def test_one_wild_rung_does_not_carry_the_fit_away():
    rungs = ladder()
    wild = Rung(name="wild", parameters=1e7, tokens=2e8, loss=1.3 * PLANTED.loss(1e7, 2e8))
    assert fit([*rungs, wild]).alpha == pytest.approx(0.34, abs=0.01)


def test_the_gradient_is_that_of_the_objective():
    points = [np.log([getattr(rung, name) for rung in ladder()]) for name in ("parameters", "tokens", "loss")]
    x = np.array([-0.4, 3.5, 4.6, 0.33, 0.29])
    for scale in (1.0, 1e-4):  # linear and square parts of the Huber loss
        at = [*np.log([PLANTED.irreducible, PLANTED.size, PLANTED.data]), PLANTED.alpha, PLANTED.beta]
        y = np.array(at) + scale * (x - np.array(at))
        numeric = [
            (_objective(y + step, *points)[0] - _objective(y - step, *points)[0]) / 2e-8 for step in 1e-8 * np.eye(5)
        ]
        assert _objective(y, *points)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-3 / HUBER)


def test_the_best_split_is_where_the_law_is_lowest():
    flops = 1e18
    sizes = np.geomspace(1e5, 1e11, 20001)
    assert PLANTED.best_parameters(flops) == pytest.approx(
        sizes[PLANTED.loss(sizes, flops / 6 / sizes).argmin()], rel=2e-3
    )


def budgets(factors: tuple[float, ...], noise: float = 0.0) -> list[Rung]:
    """Three budgets, each with models around the size that the planted law says is best."""
    generator = np.random.default_rng(5)
    return [
        Rung(name=f"{c}-{i}", parameters=n, tokens=flops / 6 / n,
             loss=PLANTED.loss(n, flops / 6 / n) * float(np.exp(noise * generator.normal())))
        for c, flops in enumerate((1e16, 1e17, 1e18))
        for i, n in enumerate(PLANTED.best_parameters(flops) * np.array(factors))
    ]  # fmt: skip


PLANTED_EXPONENT = PLANTED.beta / (PLANTED.alpha + PLANTED.beta)
AROUND = (0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.4)


def test_equal_budgets_show_the_exponent_of_the_best_size():
    rungs = budgets((0.5, 0.7, 1.0, 1.4, 2.0))
    found = iso_flop(rungs, resamplings=0, seed=0)
    assert [len(one["rungs"]) for one in found["budgets"]] == [5, 5, 5]
    assert found["size_exponent"] == pytest.approx(PLANTED_EXPONENT, abs=0.01)
    outside = [rung for rung in rungs if rung.parameters > PLANTED.best_parameters(rung.flops) * 0.9]
    nothing = iso_flop(outside, resamplings=20, seed=0)
    assert "size_exponent" not in nothing and nothing["without"].startswith("0 budgets")


def test_noise_moves_the_lowest_points_within_their_intervals():
    rungs = budgets(AROUND, noise=0.0005)
    found = iso_flop(rungs, resamplings=200, seed=1)
    low, high = found["size_exponent_interval"]
    assert low < PLANTED_EXPONENT < high and 0.01 < high - low < 0.2, found
    assert found["size_exponent"] != pytest.approx(PLANTED_EXPONENT, abs=1e-3) and "without" not in found
    for budget in found["budgets"]:
        low, high = budget["interval"]
        assert low < PLANTED.best_parameters(budget["flops"]) < high
    assert found == iso_flop(rungs, resamplings=200, seed=1) != iso_flop(rungs, resamplings=200, seed=2)


def test_three_sizes_of_a_budget_have_an_exponent_without_an_interval():
    found = iso_flop(budgets((0.5, 1.0, 2.0), noise=0.0005), resamplings=20, seed=0)
    assert found["size_exponent"] and not found["size_exponent_interval"]
    assert "one parabola" in found["without"]


def test_the_figure_draws_parabolas_with_their_lowest_points():
    result = scaling(budgets(AROUND, 0.0005), {"parameters": 1e9, "tokens": 1e10}, resamplings=20, seed=0)
    second = [trace for trace in figure(result)["data"] if trace.get("xaxis") == "x2"]
    assert len(second) == 9  # models, parabola and lowest point of three budgets
    lowest = next(trace for trace in second if trace["name"].endswith("lowest point"))
    assert lowest["x"] == [result["iso_flop"]["budgets"][0]["parameters"]] and lowest["error_x"]["array"][0] > 0
    assert "lowest point, parameters" in page(result) and "No interval" not in page(result)
    two_sizes = [rung for rung in ladder() if rung.parameters < 5e6]
    plain = scaling(two_sizes, {"parameters": 1e9, "tokens": 1e10}, resamplings=0, seed=0)
    assert not any(trace.get("xaxis") for trace in figure(plain)["data"]) and "No exponent: 0 budgets" in page(plain)


def test_a_ladder_of_too_few_different_models_is_refused():
    with pytest.raises(DataError, match="fewer than"):
        scaling(ladder()[:5] * 2, {"parameters": 1e9, "tokens": 1e10}, resamplings=0, seed=0)


def stage(tmp_path, rungs, *, resamplings):
    inputs = []
    for rung in rungs:
        folder = tmp_path / rung.name
        folder.mkdir()
        metrics = {"parameters": rung.parameters, "tokens": rung.tokens, "held_out_bits_per_byte": rung.loss}
        inputs.append(commit(folder, "ladder_model", partition=f"tiny@{rung.name}", metrics=metrics))
    settings = {"ladder": {"bootstrap": resamplings}, "predicted": {"parameters": 1e9, "tokens": 2e10}}
    job = make_job("scaling", "scaling_fit", tmp_path / "out", settings, tuple(inputs))
    run_job(job, STAGES)
    return Path(job.output)


def test_the_stage_predicts_with_an_interval_and_draws_it(tmp_path):
    folder = stage(tmp_path, ladder(noise=0.001), resamplings=20)
    result = json.loads((folder / "scaling.json").read_text("utf-8"))
    low, high = result["predicted"]["interval"]
    assert low < result["predicted"]["loss"] < high
    assert result["predicted"]["loss"] == pytest.approx(PLANTED.loss(1e9, 2e10), rel=0.02)
    record = json.loads((folder / "artifact.json").read_text("utf-8"))
    assert record["metrics"]["rungs"] == 25 and record["gates"][0]["passed"]
    assert "Plotly.newPlot" in (folder / "scaling.html").read_text("utf-8")


def test_a_loss_that_does_not_fall_is_refused(tmp_path):
    flat = [Rung(name=r.name, parameters=r.parameters, tokens=r.tokens, loss=1.0) for r in ladder()]
    folder = stage(tmp_path, flat, resamplings=1)  # the search for an optimum on a plain goes on for long
    record = json.loads((folder / "artifact.json").read_text("utf-8"))
    assert not record["gates"][0]["passed"]

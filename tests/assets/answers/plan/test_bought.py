"""What a budget buys: the published fits, repetition, serving, money, and the arithmetic that articles get wrong.

Names such as `N1` are those of a table of claims about training language models that were checked by hand.
"""

from __future__ import annotations

import json
from math import inf, prod

import numpy as np
import pytest

from assets.answers.plan.budget import (
    PUBLISHED_FITS,
    Purpose,
    best_size,
    best_when_served,
    bought,
    own_fit,
    read_for,
    worth,
)
from evaluation.report.scaling import Law, Rung, scaling
from tests.assets.fabricate import make_each, make_one
from tests.commands import printed, said
from tests.examples import EXAMPLES, example
from tests.training.pretrain.shapes import preset_shape
from training.pretrain.capacity.devices import DEVICES, device_of
from training.pretrain.capacity.needs import FP32, optimizer_bytes
from training.pretrain.models.account import parameter_shapes
from training.recipe.settings.ladder import LadderRecipe

HOFFMANN, BESIROGLU = (one.law for one in PUBLISHED_FITS)
FLOPS = 1e22


def row_of(answer, by):
    """The row of an answer with this name."""
    return next(one for one in answer["rows"] if one["by"] == by)


def test_the_rule_of_twenty_tokens_splits_a_budget_by_its_root():
    """N1, N2 and N7: 9,128,709,292 weights and 183 billion tokens for 1e22; 6 N D of the rule's table."""
    row = row_of(bought(Purpose(flops=FLOPS)), "20 tokens a weight")
    assert row["parameters"] == pytest.approx(9_128_709_292, abs=1) and f"{row['tokens'] / 1e9:.0f}" == "183"
    table = {0.4e9: 1.92e19, 1e9: 1.2e20, 7e9: 5.88e21, 13e9: 2.028e22, 70e9: 5.88e23, 175e9: 3.675e24}
    for weights, flops in table.items():
        row = row_of(bought(Purpose(flops=flops)), "20 tokens a weight")
        assert row["parameters"] == pytest.approx(weights) and row["tokens"] == pytest.approx(20 * weights)


@pytest.mark.parametrize("one", PUBLISHED_FITS, ids=lambda one: one.name)
def test_a_fit_splits_a_budget_where_no_other_size_has_a_lower_loss(one):
    sizes = np.geomspace(1e8, 1e12, 20_001)
    losses = one.law.loss(sizes, FLOPS / (6 * sizes))
    row = row_of(bought(Purpose(flops=FLOPS)), one.name)
    assert row["parameters"] == pytest.approx(sizes[losses.argmin()], rel=1e-3)
    assert row["loss"] == pytest.approx(losses.min(), abs=1e-9)


def test_published_fits_say_of_published_models_what_their_papers_say():
    """N9: Chinchilla is better than Gopher; the second fit of the same models asks for 20 tokens a weight."""
    for law, chinchilla, gopher in ((HOFFMANN, 1.937, 1.993), (BESIROGLU, 1.974, 2.000)):
        assert law.loss(70e9, 1.4e12) == pytest.approx(chinchilla, abs=5e-4)
        assert law.loss(280e9, 300e9) == pytest.approx(gopher, abs=5e-4)
    again = row_of(bought(Purpose(flops=5.76e23)), "Besiroglu 2024")
    assert again["tokens"] / again["parameters"] == pytest.approx(20, abs=2)


def test_exponents_of_kaplan_do_not_halve_a_loss_with_ten_times_the_weights():
    """N8 and N10, by `Law` without an irreducible term."""
    for exponent, times in ((0.076, 9_139), (0.095, 1_475)):
        law = Law(irreducible=0.0, size=1.0, data=0.0, alpha=exponent, beta=1.0)
        assert law.loss(1e8, 1.0) / law.loss(1e8 * 2 ** (1 / exponent), 1.0) == pytest.approx(2)
        assert 2 ** (1 / exponent) == pytest.approx(times, rel=1e-3)
        assert law.loss(1e9, 1.0) / law.loss(1e8, 1.0) == pytest.approx(10**-exponent), "0.84 and 0.80 of it"


def test_repeated_tokens_are_worth_less_and_never_more_than_a_wall():
    """N33: four epochs are worth 3.7, and no number of them more than 16.4."""
    assert worth(1e9, 1e9) == 1e9 and worth(3e8, 1e9) == 3e8
    assert worth(4e9, 1e9) == pytest.approx(3.726e9, rel=1e-3)
    assert worth(1e15, 1e9) == pytest.approx(16.39e9)
    for tokens in (5e8, 2e9, 7.5e9, 4e10):
        assert read_for(worth(tokens, 1e9), 1e9) == pytest.approx(tokens)
    assert read_for(17e9, 1e9) == inf


@pytest.mark.parametrize("one", PUBLISHED_FITS, ids=lambda one: one.name)
def test_with_few_tokens_a_larger_model_is_better_and_no_other_size_is(one):
    unique = 3e10
    sizes = np.geomspace(1e9, 1e12, 20_001)
    losses = [one.law.loss(size, worth(FLOPS / (6 * size), unique)) for size in sizes]
    best = best_size(one.law, FLOPS, unique)
    assert best == pytest.approx(sizes[np.argmin(losses)], rel=1e-3)
    assert best > best_size(one.law, FLOPS) == best_size(one.law, FLOPS, 1e15)


@pytest.mark.parametrize("unique", [inf, 3e10], ids=["enough tokens", "few tokens"])
@pytest.mark.parametrize("one", PUBLISHED_FITS, ids=lambda one: one.name)
def test_a_served_model_is_as_good_for_the_least_operations_of_its_life(one, unique):
    served, best = 2e12, best_size(one.law, FLOPS, unique)
    loss = one.law.loss(best, worth(FLOPS / (6 * best), unique))

    def life(size, tokens):
        return 6 * size * tokens + 2 * size * served

    size, tokens = best_when_served(one.law, FLOPS, served, unique)
    assert one.law.loss(size, worth(tokens, unique)) == pytest.approx(loss, abs=1e-9) and size < best
    for other in np.geomspace(size / 2, best, 2_001):
        left = loss - one.law.irreducible - one.law.size * other**-one.law.alpha
        if left > 0:
            assert life(other, read_for((one.law.data / left) ** (1 / one.law.beta), unique)) >= life(size, tokens) * (
                1 - 1e-9
            )
    alone, _ = best_when_served(one.law, FLOPS, 0.0, unique)
    assert alone == pytest.approx(best, rel=1e-3), "a model that nobody asks is the budget's best"


def test_money_buys_hours_at_a_price_and_a_share_of_the_peak_that_are_told():
    """N3 to N5: GPT-3 is 11,500 A100-days at the whole peak only; 175 B weights and 20 tokens each are 3.7e24."""
    for days, mfu, flops in ((11_500, 1.0, 3.1e23), (29_213, 0.4, 3.15e23)):
        purpose = Purpose(money=days * 24.0, device=DEVICES["A100"], mfu=mfu, gpu_hour_price=1.0)
        assert purpose.operations == pytest.approx(flops, rel=1e-3)
    answer = bought(Purpose(flops=3.675e24, device=DEVICES["A100"], mfu=0.185))
    assert answer["gpu_hours"] == pytest.approx(18e6, rel=0.02)
    assert answer["price"] is None, "nobody said what an A100 costs"


@pytest.mark.parametrize(("hours", "tons"), [(1.3e6, 390), (6.4e6, 1900)], ids=["Llama 3 8B", "Llama 3 70B"])
def test_emissions_of_published_runs_follow_from_their_hours(hours, tons):
    """Both of its model card, at one grid factor."""
    purpose = Purpose(money=hours, device=DEVICES["H100"], gpu_hour_price=1.0, grams_per_kwh=425.0)
    answer = bought(purpose)
    assert answer["kwh"] == pytest.approx(0.7 * hours) and answer["kilograms"] == pytest.approx(1000 * tons, rel=0.02)


def test_bytes_and_weights_of_a_model_of_70_billion():
    """N11 and N12: 70,553,706,496 weights; moments alone are 8 bytes of each, and 840 GB are not they."""
    shape = preset_shape("llama-3-70b")
    assert shape.parameter_count == 70_553_706_496
    mlp = sum(prod(one) for name, one in parameter_shapes(shape) if ".mlp." in name and len(one) == 2)
    assert mlp == 3 * 8192 * 28_672 * 80 and mlp / shape.parameter_count == pytest.approx(0.799, abs=1e-3)
    moments = optimizer_bytes(shape, "adamw")
    assert moments == 2 * FP32 * shape.parameter_count and moments / 1e9 == pytest.approx(564, abs=1)


PLANTED = Law(irreducible=0.4, size=30.0, data=60.0, alpha=0.35, beta=0.3)


def ladder():
    """Rungs of a planted law with a little noise."""
    drawn = np.random.default_rng(0)
    pairs = [(size, tokens) for size in (1e5, 3e5, 1e6, 3e6) for tokens in (1e7, 3e7, 1e8)]
    noise = np.exp(drawn.normal(0, 0.002, len(pairs)))
    return [
        Rung(name=f"r{n}", parameters=size, tokens=tokens, loss=float(PLANTED.loss(size, tokens) * noise[n]))
        for n, (size, tokens) in enumerate(pairs)
    ]


def test_the_recipes_own_ladder_is_one_of_the_fits_with_its_intervals():
    settings = LadderRecipe()
    result = scaling(ladder(), {"parameters": 1e7, "tokens": 1e9}, resamplings=40, seed=settings.seed)
    own = own_fit(json.loads(json.dumps(result)), resamplings=40, seed=settings.seed)
    asked = result["predicted"]["parameters"] * result["predicted"]["tokens"] * 6
    row = row_of(bought(Purpose(flops=asked), own), "own ladder")
    assert row["parameters"] == pytest.approx(result["best_split"]["parameters"], rel=1e-6)
    assert row["parameters_interval"] == pytest.approx(result["best_split"]["interval"], rel=1e-6)
    assert row["is_outside"] and row["loss_interval"][0] < row["loss"] < row["loss_interval"][1]
    row = row_of(bought(Purpose(flops=asked, unique_tokens=1e7), own), "own ladder")
    assert row["loss_interval"][0] < row["loss"] < row["loss_interval"][1] and row["loss_unit"] == "bits per byte"


@pytest.mark.parametrize("refused", ["", "loss_falls_with_size_and_tokens"], ids=["fitted", "refused"])
def test_a_recipe_brings_its_ladder_and_its_tokens_unless_a_gate_refused_the_fit(
    refused, tmp_path, monkeypatch, capsys
):
    def fitted(folder):
        result = scaling(ladder(), {"parameters": 1e7, "tokens": 1e9}, resamplings=10, seed=0)
        (folder / "scaling.json").write_text(json.dumps(result))
        return ["scaling.json"]

    def make(comparison, cell):
        how = {"failing_gates": refused, "more": fitted} if cell.asset == "scaling_fit" else {}
        return make_one(comparison, cell, metrics={"tokens": 2e7} if cell.asset == "token_shards" else None, **how)

    recipe = example("kitchen-ladder")
    shards = [cell for cell in make_each(recipe, tmp_path, make).cells.values() if cell.asset == "token_shards"]
    asked = ["plan", str(EXAMPLES / "kitchen-ladder.yaml"), "--budget", "6e16", "--root", str(tmp_path)]
    code, output, errors = printed(monkeypatch, capsys, *asked)
    assert code == 0 and max(map(len, output.splitlines())) <= 80, errors
    assert ("own ladder, 95 %: " in output, "that of the ladder in bits per byte" in output) == 2 * (not refused,)
    code, last, _ = said(monkeypatch, capsys, *asked, "--json")
    assert json.loads(last)["unique_tokens"] == 2e7 * len(shards) > 0


def test_the_command_answers_in_lines_of_80_columns_and_in_json(monkeypatch, capsys):
    asked = ["plan", "--money", "50000", "--gpu", "H100", "--served-tokens", "1e12", "--unique-tokens", "3e10"]
    code, output, _ = printed(monkeypatch, capsys, *asked, "--grams-per-kwh", "400", "--pue", "1.2")
    assert code == 0 and max(map(len, output.splitlines())) <= 80
    assert "16,667 GPU-hours of H100 at 0.5 of its peak,\n    price 50,000 at 3 an hour (assumed)" in output
    code, last, _ = said(monkeypatch, capsys, *asked, "--json")
    answer = json.loads(last)
    assert code == 0 and answer["gpu_hours"] == pytest.approx(50_000 / 3)
    assert answer["flops"] == pytest.approx(50_000 / 3 * 3600 * device_of("H100").teraflops * 1e12 * 0.5)
    assert [one["by"].partition(", ")[2] for one in answer["rows"]] == ["", *2 * ["", "repeating", "served"]]


REFUSED = {
    "nothing": ("", "name a recipe to see what it takes, or ask what a budget buys with --budget or --money"),
    "a budget that buys nothing": ("--budget 1e9", "1e+09 operations buy 2,887 weights"),
    "both": ("--budget 1e20 --money 5 --gpu H100", "a budget is either --budget (operations) or --money"),
    "money for a GPU without a price": ("--money 5e4 --gpu A100", "--money needs --gpu-hour-price, what an hour of an"),
    "a price of no GPU": ("--budget 1e20 --gpu-hour-price 2", "--gpu-hour-price needs --gpu"),
    "money for no GPU": ("--money 5", "--money needs --gpu"),
    "emissions of no GPU": ("--budget 1e20 --grams-per-kwh 400", "--grams-per-kwh needs --gpu"),
    "an option of a recipe": ("--budget 1e20 --goodput", "--goodput has no effect with a budget"),
    "an option of a budget": ("kitchen --served-tokens 1e9", "--served-tokens has no effect without --budget or"),
}


@pytest.mark.parametrize(("asked", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_answer_is_refused_in_one_sentence(asked, sentence, monkeypatch, capsys):
    code, output, errors = printed(monkeypatch, capsys, "plan", *asked.split())
    assert (code, output) == (2, "") and sentence in errors

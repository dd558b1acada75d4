"""Means of the weights."""

from __future__ import annotations

import pytest
import torch

from training.pretrain.optim.average_settings import AverageRecipe
from training.pretrain.optim.averages import Average, average_share, set_average_share


def means_over(recipe: AverageRecipe, steps: int) -> tuple[list[float], float]:
    """Weights after each of `steps` random updates, and the mean that is kept of them."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    average = Average([parameter])
    values = torch.randn(steps, generator=torch.Generator().manual_seed(0)).tolist()
    for step, value in enumerate(values):
        parameter.data.fill_(value)
        set_average_share({"average": average}, average_share(step, steps=steps, recipe=recipe))
        average.step()
    average.apply()
    return values, parameter.item()


@pytest.mark.parametrize(("fraction", "every", "counted"), [(0.3, 1, [7, 8, 9]), (0.7, 3, [3, 6, 9]), (0.01, 1, [9])])
def test_a_uniform_mean_is_over_the_steps_at_the_end(fraction, every, counted):
    values, mean = means_over(AverageRecipe(kind="uniform", fraction=fraction, every=every), 10)
    assert mean == pytest.approx(sum(values[step] for step in counted) / len(counted), abs=1e-6)


def test_an_exponential_mean_is_its_recurrence():
    values, mean = means_over(AverageRecipe(kind="ema", decay=0.8), 10)
    expected = values[0]
    for value in values[1:]:
        expected = 0.8 * expected + 0.2 * value
    assert mean == pytest.approx(expected, abs=1e-6)

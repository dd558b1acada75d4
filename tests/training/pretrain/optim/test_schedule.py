"""Schedules at their corners."""

from __future__ import annotations

import pytest

from training.pretrain.optim.schedule import learning_rate_factor


def factors(schedule: str, steps: int = 100) -> list[float]:
    return [
        learning_rate_factor(
            step, steps=steps, schedule=schedule, warmup_fraction=0.1, decay_fraction=0.2, final_fraction=0.1
        )
        for step in range(steps)
    ]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_every_schedule_warms_up_to_one_and_ends_at_its_final_fraction(schedule):
    rates = factors(schedule)
    assert rates[0] == pytest.approx(0.1) and rates[9] == 1.0 and rates[-1] == pytest.approx(0.1)
    assert rates[:10] == sorted(rates[:10]) and rates[9:] == sorted(rates[9:], reverse=True)


def test_middles_of_the_schedules():
    assert factors("cosine")[54] == pytest.approx(0.55)
    assert factors("linear")[54] == pytest.approx(0.55)
    assert factors("wsd")[79] == 1.0 and factors("wsd")[89] == pytest.approx(0.55)

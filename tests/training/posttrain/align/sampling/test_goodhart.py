"""A fall of the truth while the proxy rises: what is one, and how seldom chance looks like one."""

from __future__ import annotations

import random

import pytest

from training.posttrain.align.sampling.goodhart import RewardLook, change_of, fall_of


def look(step, proxy, truth, *, seed=0, prompts=32):
    """Rewards around two means; what a prompt adds to them is the same at each look."""
    rng, own = random.Random(f"{seed}/{step}"), random.Random(f"{seed}")
    add = [own.gauss(0, 1) for _ in range(prompts)]
    return RewardLook(
        step=step,
        proxy=tuple(proxy + one + rng.gauss(0, 0.3) for one in add),
        truth=tuple(truth + one + rng.gauss(0, 0.3) for one in add),
    )


@pytest.mark.parametrize(
    ("proxy", "truth", "since"),
    [
        ((0, 1, 2), (0, -1, -2), 0),
        ((0, 1, 2), (0, 2, 1), 1),  # the truth falls from its peak, and is still above that of the first model
        ((0, 1, 2), (0, 1, 2), None),
        ((0, 0, 0), (0, -1, -2), None),  # the training fails, and does not please its reward
        ((0, 1, 2), (0, -2, 0), None),  # the truth has come back
        ((0, 1, 2), (0, 0, -0.1), None),  # too little to be shown
    ],
)
def test_only_a_rise_of_the_proxy_with_a_fall_of_the_truth_is_one(proxy, truth, since):
    looks = [look(step, *means) for step, means in enumerate(zip(proxy, truth, strict=True))]
    fall = fall_of(looks, planned=len(looks), each_decides=False)
    assert (None if fall is None else fall.since) == since
    if fall:
        assert fall.step == 2 and fall.proxy.low > 0 > fall.truth.high and "from step" in str(fall)
        assert fall.as_json()["truth"]["change"] == pytest.approx(truth[2] - truth[since], abs=0.2)


def test_chance_looks_like_a_fall_in_few_trainings():
    """The proxy rises and the truth stays what it is: 300 trainings of nine looks, each asked at every look."""

    def cries(seed):
        looks = [look(step, step, 0, seed=seed, prompts=16) for step in range(9)]
        return any(fall_of(looks[: number + 1], planned=9, each_decides=True) for number in range(1, 9))

    assert sum(map(cries, range(300))) <= 300 * 0.025


def test_intervals_are_student_s_and_wider_for_more_comparisons():
    values = [0.5, 1.5, -0.25, 2.0, 1.0, 0.0, 0.75, 1.25, 0.1, 0.9, 1.1, 0.4, 0.6, 1.4, 0.3, 0.7]
    one = change_of([0.0] * 16, values)
    scipy = pytest.importorskip("scipy.stats")
    expected = scipy.t.interval(0.95, 15, loc=one.mean, scale=scipy.sem(values))
    assert (one.low, one.high) == pytest.approx(expected, abs=1e-4)
    many = change_of([0.0] * 16, values, comparisons=36)
    assert many.low < one.low and many.high > one.high

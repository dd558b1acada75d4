"""The order of an epoch: a bijection for any count, as even as chance, and the same for all time."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from training.order.shuffle import FEW, Shuffle


def order(count, *, seed=1, epoch=0, source="web"):
    return Shuffle(count, seed=seed, epoch=epoch, source=source).numbers(np.arange(count))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 16, 17, 1000, FEW, FEW + 1, 65_537])
def test_every_number_has_one_place_and_every_place_one_number(count):
    numbers = order(count)
    assert sorted(numbers.tolist()) == list(range(count))
    places = Shuffle(count, seed=1, epoch=0, source="web").places(numbers)
    assert places.tolist() == list(range(count))


def test_places_of_very_many_are_found_without_an_array_of_all():
    shuffle = Shuffle(3 * 10**12 + 1, seed=1, epoch=0, source="web")
    numbers = shuffle.numbers(np.arange(10**12, 10**12 + 1000))
    assert len(set(numbers.tolist())) == 1000 and numbers.min() >= 0 and numbers.max() < shuffle.count
    assert shuffle.places(numbers).tolist() == list(range(10**12, 10**12 + 1000))


def test_a_count_that_is_no_count_is_refused():
    with pytest.raises(ValueError, match="count=-1"):
        Shuffle(-1, seed=0, epoch=0, source="web")


def test_epochs_are_shuffled_anew_and_sources_and_seeds_differently():
    keys = itertools.product((0, 1), ("a", "b"), (1, 2))
    assert len({tuple(order(50, seed=seed, epoch=epoch, source=name).tolist()) for epoch, name, seed in keys}) == 8


def test_the_order_of_an_epoch_is_fixed_for_all_time():
    assert order(8).tolist() == [4, 3, 6, 0, 7, 5, 2, 1]
    assert order(10_000)[:5].tolist() == [1139, 8744, 5859, 2509, 7267]


def deviations(counted, expected):
    """How far Pearson's sum lies from its mean, in its standard deviations."""
    free = counted.size - 1
    return (((counted - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_order_of_a_few_has_the_same_chance(count):
    seeds = 1500
    drawn = Counter(tuple(order(count, seed=seed).tolist()) for seed in range(seeds))
    counted = np.array([drawn[one] for one in itertools.permutations(range(count))])
    assert abs(deviations(counted, seeds / math.factorial(count))) < 4


@pytest.mark.parametrize("count", [10, 100])
def test_every_number_comes_to_every_place_and_after_every_other_one_as_often(count):
    seeds = 1000
    orders = np.array([order(count, seed=seed) for seed in range(seeds)])
    at_place = np.array([np.bincount(column, minlength=count) for column in orders.T])
    assert abs(deviations(at_place, seeds / count)) < 4
    apart = np.bincount(((orders[:, 1:] - orders[:, :-1]) % count).ravel(), minlength=count)[1:]
    assert abs(deviations(apart, seeds)) < 4


def test_a_stretch_of_a_large_order_is_spread_like_chance_over_all_numbers():
    count = 1_000_000
    shuffle = Shuffle(count, seed=0, epoch=0, source="web")
    for first in (0, 400_000):
        numbers = shuffle.numbers(np.arange(first, first + 64_000))
        assert abs(deviations(np.bincount(numbers * 640 // count, minlength=640), 100)) < 4
        pairs = numbers[:-1] % 25 * 25 + numbers[1:] % 25
        assert abs(deviations(np.bincount(pairs, minlength=625), len(pairs) / 625)) < 4

"""Which process's device is slow."""

from __future__ import annotations

import pytest

from benchmarks.parallel import ALONE
from training.pretrain.parallel import stragglers
from training.pretrain.parallel.world import World


class Others(World):
    """A world whose other processes took so many times as long as this one."""

    def all_said(self, said):
        seconds, rest = said.split(" ", 1)
        return [said, *(f"{float(seconds) * times} {rest}" for times in (1.1, 2.0, 0.9))]


def test_a_process_that_takes_much_longer_than_the_median_is_named():
    slowest, said = stragglers.compared(Others(rank=0, size=4, device=ALONE.device))
    assert slowest == pytest.approx(2 / 1.05)
    (sentence,) = said
    assert sentence.startswith("process 2 of 4 (host ") and "1.9 times as long as the median's" in sentence


def test_a_product_takes_time_and_a_process_alone_is_the_median():
    assert stragglers.product_seconds(ALONE.device) > 0
    assert stragglers.compared(ALONE) == (1.0, [])

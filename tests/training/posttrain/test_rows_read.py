"""What a training read of its rows: leaving some out, ending within an epoch, and beginning again."""

from __future__ import annotations

import pytest

from training.posttrain.rows_read import rows_read

ROWS = [{"id": f"a#{number}", "source": "a", "generator": "x"} for number in range(5)]
OTHERS = [{"id": f"b#{number}", "source": "b"} for number in range(2)]


@pytest.mark.parametrize(
    ("ordered", "steps", "whole", "wanted"),
    [
        (ROWS, 0, False, []),
        (ROWS, 2, False, [("a", "x", 4, 4)]),
        (ROWS, 3, False, [("a", "x", 5, 5)]),  # the last batch is incomplete
        (ROWS, 3, True, [("a", "x", 4, 6)]),  # or left out: the third step begins again
        (ROWS, 4, False, [("a", "x", 5, 7)]),
        (ROWS + ROWS, 5, False, [("a", "x", 5, 10)]),  # an order of two epochs
        ([*OTHERS, *ROWS], 2, False, [("a", "x", 2, 2), ("b", "", 2, 2)]),
        (ROWS[:1], 1, True, []),
    ],
)
def test_rows_and_times_are_those_of_the_steps(ordered, steps, whole, wanted):
    found = rows_read(ordered, steps=steps, batch_size=2, whole=whole)["rows_read"]
    assert [tuple(one.values()) for one in found] == wanted

"""The functions of training.elementary as compiled loops, for whole arrays and for other compiled loops."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from training import elementary
from training.data.words.native import native

exp, log = native(elementary.exp), native(elementary.log)


def logs(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the natural logarithm of each value, float64."""
    result = np.empty(len(values))
    fill_with_logs(values, result)
    return result


@native
def fill_with_logs(values, result):
    """Write the natural logarithm of each value to `result`."""
    for place in range(len(values)):
        result[place] = log(values[place])


@native
def total_of(values):
    """Return the sum of all values, added one after another."""
    result = 0.0
    for value in values:
        result += value
    return result

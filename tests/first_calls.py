"""`python -m tests.first_calls [STARTS]`: how often the first call of a function of MKL differs from the second.

Each start is a fresh process of two threads, once as torch is and once after `use_threads`. Keep both cores busy with
something else: then the threads meet more often.
"""

from __future__ import annotations

import multiprocessing
import sys

import torch

from training.contract.identity.numerics import use_threads
from training.contract.run_settings import RunSettings

FUNCTIONS = ("cos", "sin")  # which the positions of a model go through
NUMBERS = 4160  # so many that torch divides them among its threads


def differ(name: str, prepared: bool) -> bool:
    """Whether two calls of a function differ, in a process that has not computed anything before."""
    torch.set_num_threads(2)
    if prepared:
        use_threads(RunSettings(threads=2))
    given = torch.linspace(0.01, 100.0, NUMBERS)
    first, second = (getattr(torch, name)(given) for _ in range(2))
    return not torch.equal(first, second)


def main(starts: int) -> int:
    """Print the number of differing starts of each function; the exit code is 1 if any differs after `use_threads`."""
    fork, after = multiprocessing.get_context("fork"), 0
    for name in FUNCTIONS:
        found = {}
        for prepared in (False, True):
            with fork.Pool(1, maxtasksperchild=1) as pool:
                found[prepared] = sum(pool.starmap(differ, [(name, prepared)] * starts, chunksize=1))
        print(f"{name}: {found[False]} of {starts} differ, {found[True]} after use_threads")
        after += found[True]
    return int(after > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))

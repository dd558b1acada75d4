"""By what the log-likelihood of a choice is divided, for each metric of lm-eval that likelihoods of choices give."""

from __future__ import annotations

from collections.abc import Callable

DIVISORS: dict[str, Callable[[str], int]] = {
    "acc": lambda choice: 1,
    "acc_norm": len,
    "acc_bytes": lambda choice: len(choice.encode("utf-8")),
}

"""The bounds of numbers in a recipe, checked before any record is made of them.

A number outside of them has no meaning or fits no machine; a record that checks more says more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from training.records import RecipeError

LARGEST = 2**63 - 1
WHOLE, SHARE, ABOVE_ZERO = (1, LARGEST), (0, 1), (1e-12, 1e12)
BOUNDS: dict[tuple[str, str], tuple[float, float]] = {
    ("dedup", "buckets"): (1, 100_000),
    ("dedup", "hashes_per_bucket"): (1, 100_000),
    ("extract", "max_depth"): (1, 100_000),
    ("extract", "max_html_bytes"): WHOLE,
    ("extract", "max_nodes"): WHOLE,
    ("filter", "min_language_score"): SHARE,
    ("mixture", "held_out_fraction"): SHARE,
    ("mixture", "weights"): (0, 1e12),
    ("model", "layers"): (1, 100_000),
    ("model", "width"): (1, 10**7),
    ("pretrain", "learning_rate"): ABOVE_ZERO,
    ("pretrain", "seed"): (0, LARGEST),
    ("pretrain", "sequence_length"): (1, 10**9),
    ("promote", "min_scores"): SHARE,
    ("sft", "epochs"): ABOVE_ZERO,
    ("tokenizer", "vocabulary"): (1, 10**8),
}
"""Of a field, or of each value of a mapping."""


def check_bounds(data: Mapping[str, Any]) -> None:
    """Raise RecipeError that lists all numbers of a resolved recipe's mapping that lie outside their bounds."""
    wrong = [f"{place}={str(value)[:40]}; at most {LARGEST} is right" for place, value in _too_large(data, "")]
    for (section, field), (least, most) in BOUNDS.items():
        inside = data.get(section)
        value = inside.get(field) if isinstance(inside, dict) else None
        for place, one in _numbers(value, f"{section}.{field}"):
            if not least <= one <= most and not _is_too_large(one):
                wrong.append(f"{place}={str(one)[:40]}; {least:g} to {most:g} is right")
    if wrong:
        raise RecipeError(*dict.fromkeys(wrong))


def _numbers(value: Any, where: str) -> Iterator[tuple[str, int | float]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _numbers(one, f"{where}.{name}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield where, value


def _too_large(value: Any, where: str) -> Iterator[tuple[str, int]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _too_large(one, f"{where}.{name}" if where else str(name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _too_large(one, f"{where}[{number}]")
    elif _is_too_large(value):
        yield where, value


def _is_too_large(value: Any) -> bool:
    """Whether a value is a whole number beyond 64 bits, which no field takes; `check_bounds` names it once."""
    return type(value) is int and abs(value) > LARGEST

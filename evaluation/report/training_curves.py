"""The curves of a training over the tokens that it had read, or over its steps: its losses, and what was watched."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from training.contract.progress import curve

Points = list[tuple[float, float]]
# What each curve shows, and the metrics that it shows, with the part of a metric's name that names its line.
GROUPS = {
    "training loss": r"loss|training_loss/(?P<line>.+)",
    "bits per byte of held-out text": r"held_out_bits_per_byte_(?P<line>.+)",
    "score on watched items": r"watched_accuracy_(?P<line>.+)",
    "bits per byte of the right answers": r"watched_bits_per_byte_(?P<line>.+)",
}


def placed(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[str, Points]:
    """Return the points of one metric in rows of a `metrics.jsonl`, and whether they are over `tokens` or `steps`.

    A training on rows counts no tokens. A point at a step whose tokens are not in the rows is left out.
    """
    points = curve(rows, name)
    tokens = {row["step"]: row["tokens"] for row in rows if "step" in row and "tokens" in row}
    if not tokens:
        return "steps", list(points)
    return "tokens", [(tokens[step], value) for step, value in points if step in tokens]


def grouped(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, dict[str, Points]]]:
    """Yield what each curve shows, over what, and its lines by name; nothing for a curve without points."""
    names = dict.fromkeys(name for row in rows for name in row)
    for title, pattern in GROUPS.items():
        found = {name: match for name in names if (match := re.fullmatch(pattern, name))}
        lines = {match["line"] or "all": placed(rows, name) for name, match in found.items()}
        if own := {name: points for name, (_, points) in lines.items() if points}:
            yield title, next(over for over, points in lines.values() if points), own

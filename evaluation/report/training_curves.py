"""The curves of a training: its losses and what was watched, over tokens or steps, and both rewards of alignment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from evaluation.report.figures import lines_picture
from training.contract.progress import curve

if TYPE_CHECKING:
    from evaluation.report.truth_comparison import Record

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


# Rewards: the trained one and the true one over the steps of alignment (Goodhart's curve)

ENDS = 3  # a change is its mean and the two ends of its interval


def watched_rewards(records: Sequence[Record]) -> dict[str, Any]:
    """Return the note on what was seen while the aligned model was trained; empty if nobody looked."""
    found = [record for _, record in records if record["asset"] == "aligned_model"]
    return found[-1]["notes"].get("watched", {}) if found else {}


def goodhart_picture(seen: Mapping[str, Any]) -> Markup:
    """Return how both rewards changed since the SFT model, by step, with the ends of their intervals.

    The trained reward is the lines 0 to 2, the true one 3 to 5, and no change is line 6.
    """
    looks = seen["looks"]
    changes = [
        [(look["step"], look[name][end]) for look in looks]
        for name in ("proxy_change", "truth_change")
        for end in range(ENDS)
    ]
    lines = [*changes, [(look["step"], 0.0) for look in looks]]
    return lines_picture("Change of the trained and of the true reward", lines, horizontal="step")

"""What was seen of a training on rewards: the trained reward and the true one over its steps (Goodhart's curve)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from evaluation.report.figures import lines_picture
from evaluation.report.truth_comparison import Record, of_asset

ENDS = 3  # a change is its mean and the two ends of its interval


def watched_rewards(records: Sequence[Record]) -> dict[str, Any]:
    """Return the note on what was seen while the aligned model was trained; empty if nobody looked."""
    found = of_asset(records, "aligned_model")[-1:]
    return found[0][1]["notes"].get("watched", {}) if found else {}


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

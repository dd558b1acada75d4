"""The answer to `pedigree trace --text` as an HTML page.

It shows the text, its spans coloured by length, and the pages of each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import jinja2

LEVELS = (0, 16, 32, 64)  # tokens from which on a span has each of the four colours


def page_of(told: Mapping[str, Any]) -> str:
    """Return the HTML page, which loads nothing and runs no script.

    `told` is the answer of `training.provenance`.
    """
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("assets.answers.trace"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    spans = [span | {"level": bisect_right(LEVELS, span["tokens"]) - 1} for span in told["spans"]]
    least = told["least_tokens"]
    levels = [f"{max(low, least)} to {high - 1}" for low, high in pairwise(LEVELS)] + [f"{LEVELS[-1]} and more"]
    return made.get_template("trace.html.j2").render(
        told={**told, "spans": spans}, pieces=_pieces(told["text"], spans), levels=levels, steps_of=_steps
    )


def _steps(seen: Mapping[str, Any]) -> list[int]:
    return sorted({one["step"] for one in seen["steps"] if not one["skipped"]})


def _pieces(text: str, spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Divide the text into pieces that lie in the same spans.

    Each piece has the longest of its spans, or None.
    """
    cuts = sorted({0, len(text), *(at for span in spans for at in (span["start"], span["stop"]))})
    pieces = []
    for start, stop in pairwise(cuts):
        own = [number for number, span in enumerate(spans) if span["start"] <= start and stop <= span["stop"]]
        longest = max(own, key=lambda number: spans[number]["tokens"], default=None)
        level = None if longest is None else spans[longest]["level"]
        pieces.append({"text": text[start:stop], "span": longest, "level": level})
    return pieces

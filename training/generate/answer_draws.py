"""How the answers to a task are drawn, by its `generation_kwargs`, and with which seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ITEM = "item"  # beside a request's `generation_kwargs`, the id of the item that it asks about


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerDraw:
    """How the answers to a task are drawn. With temperature 0 they are the likeliest tokens, and the rest is unused."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return how answers are drawn, for the record of a score."""
        drawn = {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p, "seed": self.seed}
        return drawn if self.temperature else {"do_sample": False}


def answer_draw(asked: Mapping[str, Any]) -> AnswerDraw:
    """Return how answers are drawn by a task's `generation_kwargs`, which `check_generation` has checked."""
    heat = 0.0 if asked.get("do_sample") is False else float(asked.get("temperature") or 0.0)
    drawn = asked if heat else {}
    top_p = drawn.get("top_p")
    return AnswerDraw(temperature=heat, top_p=1.0 if top_p is None else float(top_p), seed=int(drawn.get("seed") or 0))


def answer_seed(suite: str, item: str, number: int, seed: int) -> int:
    """Return the seed of an item's answer, which depends on nothing but suite, item, its number there and `seed`."""
    return int.from_bytes(hashlib.sha256(f"{suite}/{item}/{number}/{seed}".encode()).digest()[:7])

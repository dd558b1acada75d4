"""The language of each held-out document that a look reads, as `evaluation/exams/watched_items.py` writes it."""

from __future__ import annotations

import json
from pathlib import Path

LANGUAGES_FILE = "languages.json"


def read_languages(folder: Path) -> tuple[str, ...] | None:
    """Return the languages in the order of the plan's array `held_out`; None if they are not watched."""
    path = folder / LANGUAGES_FILE
    return tuple(json.loads(path.read_text("utf-8"))) if path.exists() else None

"""The embedded default data set: a small closed world of cooking sites, generated from a seed as genuine WARC files.

`write_snapshot` (in `archive`) writes the crawl with its truth; `rows` gives everything that is not a crawl.
"""

from __future__ import annotations

from collections.abc import Callable

from training.data.kitchen.exam import chat_items, cloze_items, question_items
from training.data.kitchen.reference import abusive_texts, reference_texts
from training.data.kitchen.talk import alignment_prompts, dialogues, preferences
from training.data.kitchen.world import KitchenError, KitchenWorld

ROWS: dict[str, Callable[[KitchenWorld], list[dict[str, object]]]] = {
    "cloze": cloze_items,
    "questions": question_items,
    "chat": chat_items,
    "dialogues": dialogues,
    "preferences": preferences,
    "alignment": alignment_prompts,
    "reference": reference_texts,
    "abuse": abusive_texts,
}


def rows(name: str, world: KitchenWorld) -> list[dict[str, object]]:
    """The rows of `kitchen://<name>`."""
    if name not in ROWS:
        raise KitchenError(f"kitchen://{name}: there is no such data; there are {', '.join(ROWS)}")
    return ROWS[name](world)

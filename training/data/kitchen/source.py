"""The kitchen as a generated source: writes files according to the section `kitchen` of a recipe.

A snapshot is WARC files with the truth of every response beside them. All other data are files of JSON lines, which a
recipe names as `kitchen://<file>`. No module outside this package imports it; `training.data.generated` loads it by
name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from training.contract.records import RecipeError, read_record
from training.data.kitchen.archive import write_snapshot
from training.data.kitchen.exam import chat_items, cloze_items, question_items
from training.data.kitchen.inference import inference_items
from training.data.kitchen.reference import abusive_texts, reference_texts
from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.talk import alignment_prompts, dialogues, preferences

ROWS: dict[str, Callable[[KitchenWorld], list[dict[str, object]]]] = {
    "cloze": cloze_items,
    "inference": inference_items,
    "questions": question_items,
    "chat": chat_items,
    "dialogues": dialogues,
    "preferences": preferences,
    "alignment": alignment_prompts,
    "reference": reference_texts,
    "abuse": abusive_texts,
}


def write_archives(section: dict[str, Any], snapshot: str, folder: Path) -> int:
    """Write the WARC files of `snapshot` and their truth into `folder`; return the number of WARC files."""
    return len(write_snapshot(_world(section), snapshot, folder))


def write_rows(section: dict[str, Any], name: str, stream: BinaryIO) -> None:
    """Write the rows of `kitchen://<name>` to `stream` as JSON lines."""
    if name not in ROWS:
        raise RecipeError(f"kitchen://{name}: there is no such data; there are {', '.join(ROWS)}")
    for row in ROWS[name](_world(section)):
        stream.write(json.dumps(row).encode() + b"\n")


def _world(section: dict[str, Any]) -> KitchenWorld:
    return read_record(KitchenWorld, section, where="kitchen")

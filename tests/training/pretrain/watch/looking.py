"""Exam items by hand for tiny trainers, and a training in several processes that is looked at."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.training.pretrain import spread, tiny
from training.contract.job import InputArtifact
from training.contract.records import read_record
from training.pretrain.looks.looks import Looks
from training.pretrain.watch.items import ITEMS_FILE, WatchedItem
from training.pretrain.watch.settings import WatchRecipe


def tokens(text: str) -> list[int]:
    """A text in the tiny chain's tokens: bytes, of which the alphabet's place is not that of the byte."""
    return [2 + ord(letter) - ord("!") for letter in text.replace(" ", "~")]


def item_row(suite: str, number: int) -> dict:
    """An item with three choices, or in the suite `last` a text that is to be the likeliest."""
    draw, choices = random.Random(f"{suite}/{number}"), 1 if suite == "last" else 3
    context = tokens(tiny.sentence((suite, number), words=2))
    requests = [[context, tokens(f" {word}")] for word in draw.sample(sorted(set(tiny.WORDS)), choices)]
    lengths = [float(len(continuation)) if suite == "by_length" else 1.0 for _, continuation in requests]
    right = [draw.randrange(choices)]
    return {
        "suite": suite,
        "item": f"{suite}{number}",
        "requests": requests,
        "lengths": lengths,
        "right": right,
        "bytes": len(requests[right[0]][1]),
        "is_greedy": suite == "last",
    }


ROWS = [item_row(suite, number) for suite in ("cloze", "by_length", "last") for number in range(9)]
ITEMS = {
    suite: [read_record(WatchedItem, row) for row in ROWS if row["suite"] == suite]
    for suite in ("cloze", "by_length", "last")
}
SUITES = tuple(ITEMS)


def items_artifact(folder: Path) -> InputArtifact:
    """The items as the stage writes them."""
    folder.mkdir(parents=True)
    (folder / ITEMS_FILE).write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tiny.commit(folder, "watched_items", [ITEMS_FILE])


def looked_at(data, degrees, rank, size) -> dict[str, float]:
    """What is seen of a model after its first step."""
    trainer = spread.trainer_in(data, spread.world_of(degrees, rank, size))
    looks = Looks(trainer, WatchRecipe(every=1, suites=SUITES, items=9), ITEMS, share=0.02)
    trainer.run_step()
    return looks.at_step() | looks.answers()

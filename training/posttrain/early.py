"""Data of post-training as tokens, before there is a model: what the checks of lengths share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.contract.artifact import Artifact
    from training.generate.turns import Chat
    from training.recipe.recipe import Recipe

TOKENIZERS = ("tokenizer", "adopted_model")  # a recipe has at least one of them
AT_ONCE = 256  # rows that are made into tokens before the next are read
Made = Mapping[str, Sequence["Artifact"]]


def chat_of(recipe: Recipe, made: Made) -> Chat:
    """Return the chat that the recipe's SFT model will have, from the tokenizer that is made or adopted already."""
    from training.generate.turns import Chat, template

    asset = next(name for name in TOKENIZERS if made.get(name))
    folder = made[asset][0].file("" if asset == "tokenizer" else "model")
    return Chat.of(folder, template(recipe.sft.chat_template, recipe.sft.system_prompt or ""))


def batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a JSON lines file, AT_ONCE at a time."""
    with open(path, encoding="utf-8") as lines:
        while some := [json.loads(line) for line in islice(lines, AT_ONCE)]:
            yield some

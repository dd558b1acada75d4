"""Which prompts answers can be sampled for, and whether any is there, asked also before the base model is made."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from training.contract.job import DataError
from training.contract.stage import InputCheck
from training.posttrain.early import TOKENIZERS, Made, batches, chat_of
from training.posttrain.scoring import RIGHT_ANSWER

if TYPE_CHECKING:
    from training.generate.turns import Chat, Message
    from training.posttrain.align.settings import AlignRecipe
    from training.posttrain.rows.forms import Row
    from training.recipe.recipe import Recipe


def reasons_of(rows: Sequence[Row], recipe: AlignRecipe, chat: Chat, held_out: Collection[str]) -> list[str]:
    """Return why no answers to each prompt can be sampled; empty if they can. `held_out` are prompts as text."""
    most = recipe.max_length - recipe.max_new_tokens
    lengths = map(len, chat.encode_prompts([row["prompt"] for row in rows]))
    return [
        "held_out" if as_text(row["prompt"]) in held_out else "longer_than_max_length" if length > most else ""
        for row, length in zip(rows, lengths, strict=True)
    ]


def as_text(prompt: list[Message]) -> str:
    """Return a prompt as one text, equal for equal prompts."""
    return json.dumps(prompt, sort_keys=True)


def check_usable(recipe: AlignRecipe, usable: Iterable[Row]) -> None:
    """Raise DataError if none of the prompts given is usable, or none has an answer although a reward needs one."""
    parts, checking = recipe.reward_parts, needing_right(recipe)
    is_any = False
    for row in usable:
        is_any = True
        if not checking or row["answer"]:
            return
    if not is_any:
        raise DataError(
            "align.prompts: not one prompt can be used: they are held out, or have more tokens than"
            f" align.max_length - align.max_new_tokens = {recipe.max_length - recipe.max_new_tokens}"
        )
    named = f"rewards: {checking[0]}" if checking[0] in parts else "verifiable_reward_weight"
    raise DataError(
        f"align.{named} has the weight {recipe.reward_weights[checking[0]]}, but no prompt has a field `answer` to"
        " check against; name other prompts in align.prompts or leave the reward out"
    )


def needing_right(recipe: AlignRecipe) -> list[str]:
    """Return the names of the rewards that need the right answer to a prompt."""
    parts = recipe.reward_parts
    return [
        name for name in recipe.reward_weights if name == RIGHT_ANSWER or (name in parts and parts[name].needs_right)
    ]


def _check_prompts(recipe: Recipe, made: Made) -> None:
    from training.posttrain.preferences.pairs import is_pair
    from training.posttrain.rows.forms import prompt_of
    from training.posttrain.rows.sorting import HELD_OUT_FILE, PROMPTS_FILE, TRAIN_FILE

    if recipe.align.declared.learns_from != "samples":
        return
    chat, pairs, own = chat_of(recipe, made), made["preference_data"][0], made.get("prompt_data")
    held_out = {as_text(row["prompt"]) for rows in batches(pairs.file(HELD_OUT_FILE)) for row in rows if is_pair(row)}

    def usable() -> Iterator[Row]:
        for some in batches(own[0].file(PROMPTS_FILE) if own else pairs.file(TRAIN_FILE)):
            rows = some if own else [row | prompt_of(row) for row in some if is_pair(row)]
            reasons = reasons_of(rows, recipe.align, chat, held_out)
            yield from (row for row, why in zip(rows, reasons, strict=True) if not why)

    check_usable(recipe.align, usable())


PROMPTS_FIT = InputCheck(assets=("preference_data", "prompt_data", *TOKENIZERS), check=_check_prompts)

"""Whether any pair of preferences fits into the rows of a training, asked before the base model is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from training.contract.job import DataError
from training.contract.stage import InputCheck
from training.posttrain.early import TOKENIZERS, Made, batches, chat_of

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe


def pairs_fit(where: str, longest: Callable[[Recipe], int]) -> InputCheck:
    """Return the check that a pair to train on, and a held-out one, have at most so many tokens as `longest` returns.

    `where` is the section whose `max_length` that is. Every method reads pairs: those that learn from answers take both
    of a pair, and those that sample measure their rewards on pairs.
    """
    return InputCheck(assets=("preference_data", *TOKENIZERS), check=partial(_check_lengths, where, longest))


def _check_lengths(where: str, longest: Callable[[Recipe], int], recipe: Recipe, made: Made) -> None:
    from training.posttrain.preferences.pairs import encode_pairs, is_pair
    from training.posttrain.rows.sorting import HELD_OUT_FILE, TRAIN_FILE

    most, chat = longest(recipe), chat_of(recipe, made)
    for name in (TRAIN_FILE, HELD_OUT_FILE):
        rows = batches(made["preference_data"][0].file(name))
        encoded = (pair for some in rows for pair in encode_pairs([row for row in some if is_pair(row)], chat))
        if not any(pair.length <= most for pair in encoded):
            raise DataError(f"{where}.max_length={most}: not one pair in {name} fits; make it larger")

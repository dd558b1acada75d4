"""Whether any conversation fits into the rows of fine-tuning, asked before the base model is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.contract.job import DataError
from training.contract.stage import InputCheck
from training.posttrain.early import TOKENIZERS, Made, batches, chat_of

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe


def _check_lengths(recipe: Recipe, made: Made) -> None:
    """Raise DataError if no conversation has an answer that ends within `sft.max_length` tokens."""
    from training.posttrain.rows.sorting import INSTRUCTIONS_FILE

    chat, longest = chat_of(recipe, made), recipe.sft.max_length
    for rows in batches(made["instruction_data"][0].file(INSTRUCTIONS_FILE)):
        for whole in chat.encode([row["messages"] for row in rows]):
            within = zip(whole.input_ids[:longest], whole.trained, strict=False)
            if any(token == chat.end_id and is_trained for token, is_trained in within):
                return
    raise DataError(f"sft.max_length={longest}: not one conversation fits; make it larger")


CONVERSATIONS_FIT = InputCheck(assets=("instruction_data", *TOKENIZERS), check=_check_lengths)

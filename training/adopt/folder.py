"""The folders of strangers that a recipe names, and what they say: an adopted model or tokenizer, and a teacher.

Imports no torch, because recipes are read with this module.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from training.adopt.trial import check_tried
from training.contract.artifact import MADE
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.data.sources import DATA_VARIABLE, resolve
from training.data.tokens.adopted_folder import folder_here, vocabulary_of
from training.pretrain.models.config_json import read_config
from training.pretrain.models.shape import ModelConfig


def shape_of(model: str, *, has_corpus: bool = False) -> ModelConfig | None:
    """Return the shape of the model that `adopt.model` names; None if there is no such folder on this machine.

    Raise RecipeError if the folder holds no model that can be adopted: no safetensors, no tokenizer, an adapter, or an
    architecture of no known family; or, if there is a corpus, a tokenizer that is not byte-level.
    """
    try:
        folder = folder_here(model, field="model")
        if folder is None:
            return None
        check_tried(folder, "continued" if has_corpus else "adopted")
        return read_config(json.loads((folder / "config.json").read_text("utf-8")))
    except KeyError as error:
        raise RecipeError(f"adopt.model: {model}: config.json has no {error}") from None
    except (DataError, RecipeError, ValueError) as error:
        said = str(error)
        raise RecipeError(said if said.startswith("adopt.") else f"adopt.model: {said}") from None


def size_of(tokenizer: str, special_tokens: Sequence[str]) -> int | None:
    """Return the size of the vocabulary that `adopt.tokenizer` names, with the special tokens; None if it is not here.

    Raise RecipeError if the folder holds no tokenizer that can be opened.
    """
    try:
        if (folder := folder_here(tokenizer, field="tokenizer")) is not None:
            check_tried(folder, "tokenizer")
    except DataError as error:
        said = str(error)
        raise RecipeError(said if said.startswith("adopt.") else f"adopt.tokenizer: {said}") from None
    return vocabulary_of(tokenizer, special_tokens)


def check_teacher(teacher: str) -> None:
    """Raise RecipeError if the folder that `pretrain.distill.teacher` names is here and cannot be opened."""
    if teacher.startswith(MADE) or (teacher.startswith("data://") and not os.environ.get(DATA_VARIABLE)):
        return
    folder = Path(resolve(teacher)).expanduser()
    if not os.path.exists(folder):
        return  # which is said when the recipe is run
    try:
        check_tried(folder / "model" if (folder / "model").is_dir() else folder, "teacher")
    except DataError as error:
        raise RecipeError(f"pretrain.distill.teacher: {error}") from None

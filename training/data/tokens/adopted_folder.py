"""The folder of a tokenizer, or of a model, that a recipe adopts. Recipes are read with this module."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from training.contract.artifact import digest_of_files, manifest
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.data.sources import DATA_VARIABLE, is_remote, resolve

KEPT = re.compile(r"[^/@]+@(([a-z_]+-)?(step|epoch)-[0-9]+|average)")  # the name of a kept step, or of their average
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json")


def folder_of(model: str, *, field: str = "model") -> Path:
    """Return the absolute path of the folder in a field of `adopt`. Raise DataError for an address elsewhere."""
    check_no_kept_step(model, field)
    if "://" in model and not model.startswith(("data://", "file://")):
        raise DataError(
            f"adopt.{field}: {model}: a {field} is adopted from a folder; fetch it first: hf download NAME --local-dir"
            " FOLDER"
        )
    location = resolve(model)
    assert not is_remote(location)
    return Path(location).expanduser().resolve()


def check_no_kept_step(model: str, field: str) -> None:
    """Raise RecipeError for the name of a kept step, which is adopted from its export."""
    if KEPT.fullmatch(model) and not os.path.exists(model):
        raise RecipeError(
            f"adopt.{field}: {model}: a {field} is adopted from a folder; `pedigree export {model} FOLDER` writes one"
        )


def folder_here(place: str, *, field: str) -> Path | None:
    """Return the folder in a field of `adopt`; None if it is not on this machine.

    A folder `data://…` is not here if no environment variable says where the data is.
    """
    if place.startswith("data://") and not os.environ.get(DATA_VARIABLE):
        return None
    folder = folder_of(place, field=field)
    return folder if os.path.exists(folder) else None  # which takes a name that is too long for one that is not there


def vocabulary_of(tokenizer: str, special_tokens: Sequence[str]) -> int | None:
    """Return the size of the vocabulary that `adopt.tokenizer` names, including the special tokens added to it.

    Return None if there is no such folder on this machine. Raise RecipeError if the folder holds no tokenizer.json.
    """
    try:
        folder = folder_here(tokenizer, field="tokenizer")
        if folder is None:
            return None
        content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        known = content["model"]["vocab"] | {one["content"]: one["id"] for one in content.get("added_tokens", [])}
    except (OSError, ValueError, TypeError, KeyError, DataError) as error:
        said = str(error)
        raise RecipeError(said if said.startswith("adopt.") else f"adopt.tokenizer: {tokenizer}: {said}") from None
    return max(known.values()) + 1 + sum(token not in known for token in special_tokens)


def tokenizer_digest(folder: Path) -> str:
    """Return the digest of a tokenizer's files in a folder, which identifies an adopted tokenizer."""
    names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if "tokenizer.json" not in names:
        raise DataError(f"adopt.tokenizer: {folder}: no tokenizer.json")
    return digest_of_files(manifest(folder, names))

"""The folder of an adopted model, and what its `config.json` says.

Imports no torch, because recipes are read with this module.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from training.data.sources import DATA_VARIABLE, is_remote, resolve
from training.generate.checked_folder import check_folder
from training.job import DataError
from training.pretrain.models.config_json import read_config
from training.pretrain.models.shape import ModelConfig
from training.records import RecipeError


def folder_of(model: str) -> Path:
    """Return the folder that `adopt.model` names, as an absolute path. Raise DataError for an address elsewhere."""
    if "://" in model and not model.startswith(("data://", "file://")):
        raise DataError(
            f"adopt.model: {model}: a model is adopted from a folder; fetch it first: hf download NAME --local-dir"
            " FOLDER"
        )
    location = resolve(model)
    assert not is_remote(location)
    return Path(location).expanduser().resolve()


def shape_of(model: str) -> ModelConfig | None:
    """Return the shape of the model that `adopt.model` names; None if there is no such folder on this machine.

    A folder `data://…` is not there if no environment variable says where the data is. Raise RecipeError if the folder
    holds no model that can be adopted: no safetensors, no tokenizer, an adapter, or an architecture that this project
    does not train.
    """
    if model.startswith("data://") and not os.environ.get(DATA_VARIABLE):
        return None
    try:
        folder = folder_of(model)
        if not folder.exists():
            return None
        check_folder(folder)
        return read_config(json.loads((folder / "config.json").read_text("utf-8")))
    except KeyError as error:
        raise RecipeError(f"adopt.model: {model}: config.json has no {error}") from None
    except (DataError, RecipeError, ValueError) as error:
        said = str(error)
        raise RecipeError(said if said.startswith("adopt.") else f"adopt.model: {said}") from None

"""The folder of an adopted model, and what its `config.json` says.

Imports no torch, because recipes are read with this module.
"""

from __future__ import annotations

import json

from training.adopt.trial import check_tried
from training.data.tokens.adopted_folder import folder_here
from training.job import DataError
from training.pretrain.models.config_json import read_config
from training.pretrain.models.shape import ModelConfig
from training.records import RecipeError


def shape_of(model: str) -> ModelConfig | None:
    """Return the shape of the model that `adopt.model` names; None if there is no such folder on this machine.

    Raise RecipeError if the folder holds no model that can be adopted: no safetensors, no tokenizer, an adapter, or an
    architecture that this project does not train.
    """
    try:
        folder = folder_here(model, field="model")
        if folder is None:
            return None
        check_tried(folder, adopt=True)
        return read_config(json.loads((folder / "config.json").read_text("utf-8")))
    except KeyError as error:
        raise RecipeError(f"adopt.model: {model}: config.json has no {error}") from None
    except (DataError, RecipeError, ValueError) as error:
        said = str(error)
        raise RecipeError(said if said.startswith("adopt.") else f"adopt.model: {said}") from None

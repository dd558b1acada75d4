"""Check a folder with a model in the transformers layout, without opening the model. Standard library only."""

from __future__ import annotations

import json
from pathlib import Path

from training.contract.job import DataError
from training.contract.model_files import weight_files
from training.generate.chat_template import check_template


def check_folder(folder: Path) -> None:
    """Raise DataError unless the folder holds a complete model in the transformers layout with safetensors weights.

    The chat template must be the one with which the model was trained. Adapters are refused because they need another
    model's folder.
    """
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise DataError(f"{folder}: no {name}; a model folder in the transformers layout is needed")
    if (folder / "adapter_config.json").exists():
        raise DataError(f"{folder}: adapter_config.json: an adapter is no model; merge it into its model and save that")
    weight_files(folder)
    check_tokenizer(folder)
    check_template(folder)


def check_tokenizer(folder: Path) -> None:
    """Raise DataError if a loader would take the tokenizer from another file than tokenizer.json."""
    path = folder / "tokenizer_config.json"
    named = json.loads(path.read_text("utf-8")).get("fast_tokenizer_files") if path.is_file() else None
    if named and named != ["tokenizer.json"]:
        raise DataError(
            f"{path}: fast_tokenizer_files names {named}, which some loaders would read instead of tokenizer.json;"
            " remove this field"
        )

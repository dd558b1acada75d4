"""Check a folder with a model in the transformers layout, without opening the model. Standard library only."""

from __future__ import annotations

from pathlib import Path

from training.generate.chat_template import check_template
from training.job import DataError

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def check_folder(folder: Path) -> None:
    """Raise DataError unless the folder holds a complete model in the transformers layout with safetensors weights.

    The chat template must be the one with which the model was trained. Pickled weights are refused because opening them
    runs code, and adapters because they need another model's folder.
    """
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise DataError(f"{folder}: no {name}; a model folder in the transformers layout is needed")
    if (folder / "adapter_config.json").exists():
        raise DataError(f"{folder}: adapter_config.json: an adapter is no model; merge it into its model and save that")
    if not any((folder / name).is_file() for name in WEIGHTS):
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        advice = f"; {pickled[0]} is a pickle, which is never read: save it again as safetensors" if pickled else ""
        raise DataError(f"{folder}: no {WEIGHTS[0]}{advice}")
    check_template(folder)

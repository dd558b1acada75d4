"""Open models and tokenizers in the transformers layout, from safetensors and JSON only and without any download."""

from __future__ import annotations

import os

# Set before transformers is imported in this process: a job downloads no model and sends no telemetry.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as transformers_logging

from training.generate.chat_template import check_template
from training.job import DataError

transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()

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


def device() -> torch.device:
    """Return this process's accelerator (by LOCAL_RANK), or the CPU if there is none."""
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def open_model(folder: Path, *, dtype: Any, reward: bool = False) -> Any:
    """Return the model in a folder, on this process's device; with `reward`, as a model with one scalar output.

    All weights that transformers opens are opened here, after `check_folder`.
    """
    check_folder(folder)
    cls, head = (AutoModelForSequenceClassification, {"num_labels": 1}) if reward else (AutoModelForCausalLM, {})
    model = cls.from_pretrained(folder, dtype=dtype, local_files_only=True, use_safetensors=True, **head)
    return model.to(device())


def load_tokenizer(folder: Path) -> Any:
    """Return the folder's tokenizer. Nothing is downloaded."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool) -> torch.Tensor:
    """Return the rows as int64 `[rows, longest]`, padded with `fill` on the left or on the right."""
    width = max(map(len, rows))
    filled = [[*[fill] * (width - len(row)), *row] if left else [*row, *[fill] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.long)

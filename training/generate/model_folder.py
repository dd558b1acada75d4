"""Open models and tokenizers in the transformers layout: safetensors and JSON only, nothing fetched."""

from __future__ import annotations

import os

# Before transformers is imported anywhere in this process: a job never asks the network for a model, nor reports.
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

from training.job import DataError

transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def check_folder(folder: Path) -> None:
    """DataError unless the folder holds a whole model in the transformers layout, its weights as safetensors.

    Weights in pickles run code when they are opened, and an adapter's file names the folder of another model.
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


def device() -> torch.device:
    """The accelerator of this process, or the CPU."""
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def open_model(folder: Path, *, dtype: Any, reward: bool = False) -> Any:
    """The model in a folder, on this process's device. The one place where transformers opens weights."""
    check_folder(folder)
    cls, head = (AutoModelForSequenceClassification, {"num_labels": 1}) if reward else (AutoModelForCausalLM, {})
    model = cls.from_pretrained(folder, dtype=dtype, local_files_only=True, use_safetensors=True, **head)
    return model.to(device())


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer. Nothing is fetched."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool) -> torch.Tensor:
    """`[rows, longest]` int64, filled up at the front or at the end."""
    width = max(map(len, rows))
    filled = [[*[fill] * (width - len(row)), *row] if left else [*row, *[fill] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.long)

"""Open models and tokenizers in the transformers layout, from safetensors and JSON only and without any download."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.contract.process.lean import not_found

# Set before transformers is imported in this process: a job downloads no model and sends no telemetry.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

# Transformers looks once whether these are installed, and then imports them with any model, for 0.7 s, although only
# torchao's quantized weights and losses of object detection need them.
with not_found("torchao", "scipy"):
    from transformers.utils import is_scipy_available, is_torchao_available

    is_torchao_available(), is_scipy_available()

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.utils import logging as transformers_logging

from training.contract.model_files import loaded
from training.generate.checked_folder import check_folder as check_folder
from training.generate.checked_folder import prepare_quantized
from training.generate.spread import is_spread, options_for, prepare

transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()


def device() -> torch.device:
    """Return this process's accelerator (by LOCAL_RANK), or the CPU if there is none."""
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def open_model(folder: Path, *, dtype: Any, reward: bool = False, new_head: bool = False, shard: int = 1) -> Any:
    """Return the model in a folder, on this process's device; with `reward`, as a model with one scalar output.

    With `new_head`, the folder holds a language model, and the weights of that output are drawn. With `shard`, each
    weight is divided among so many processes of the job (training/generate/spread.py). Raise DataError, with the name
    of the file or weight, unless the folder holds exactly such a model.
    """
    check_folder(folder)
    prepare_quantized(folder)
    if reward:
        _add_classifier(json.loads((folder / "config.json").read_text("utf-8")).get("model_type"))
    cls = AutoModelForSequenceClassification if reward else AutoModelForCausalLM
    options = ({"num_labels": 1} if reward else {}) | options_for(shard)
    part = (0, 1) if shard == 1 else (int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    model = loaded(cls, folder, new_head=new_head, part=part, dtype=dtype, **options)
    if is_spread(model):
        prepare(model)
        return model
    return model.to(device())


def _add_classifier(model_type: str | None) -> None:
    """Give a model family whose class with a head for scores transformers lacks, such as Granite's, one of its kind."""
    if model_type not in CONFIG_MAPPING:
        return  # the model's own error says what is wrong
    config = CONFIG_MAPPING[model_type]
    if config in AutoModelForSequenceClassification._model_mapping or config not in AutoModelForCausalLM._model_mapping:
        return
    causal = AutoModelForCausalLM._model_mapping[config]
    base = next(one for one in causal.__mro__ if one.__name__.endswith("PreTrainedModel"))
    name = causal.__name__.replace("ForCausalLM", "ForSequenceClassification")
    made = type(name, (GenericForSequenceClassification, base), {"config_class": config})
    # Without `exist_ok` a configuration of transformers itself is skipped.
    AutoModelForSequenceClassification.register(config, made, exist_ok=True)


def load_tokenizer(folder: Path) -> Any:
    """Return the folder's tokenizer. Nothing is downloaded."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool) -> torch.Tensor:
    """Return the rows as int64 `[rows, longest]`, padded with `fill` on the left or on the right."""
    width = max(map(len, rows))
    filled = [[*[fill] * (width - len(row)), *row] if left else [*row, *[fill] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.long)

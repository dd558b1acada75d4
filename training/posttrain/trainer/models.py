"""Load the models and tokenizers of post-training, and write them as model folders."""

from __future__ import annotations

import copy
import json
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from training.contract.artifact import write_json, write_text
from training.contract.tokenizer_files import write_tokenizer
from training.generate import model_folder
from training.generate.chat_template import DIGEST_FIELD, template_digest
from training.generate.model_folder import open_model, padded
from training.generate.spread import is_first, is_spread
from training.generate.turns import END, END_OF_TEXT, PAD, Chat
from training.posttrain.trainer.spread_state import write_weights

MODEL_FOLDER = "model"
TEMPLATE_FILE = "chat_template.jinja"
VERSION_FIELD = "transformers_version"  # left out, because the model does not depend on it


def load_model(folder: Path, *, reward: bool = False, new_head: bool = False, shard: int = 1) -> Any:
    """Return the language model (or the reward model) in a folder, in fp32, the precision of the master weights.

    With `new_head`, a reward model is made of a language model. With `shard`, each weight is divided among so many
    processes of the job.
    """
    return open_model(folder, reward=reward, new_head=new_head, dtype=torch.float32, shard=shard)


def load_tokenizer(folder: Path, chat: Chat) -> Any:
    """Return transformers' tokenizer of a folder, with the chat's template, EOS and padding on the left."""
    tokenizer = model_folder.load_tokenizer(folder)
    tokenizer.chat_template = chat.template
    tokenizer.eos_token = END
    tokenizer.pad_token = PAD
    tokenizer.padding_side = "left"
    return tokenizer


def save_model(model: Any, tokenizer: Any, chat: Chat, folder: Path, *, generates: bool = True) -> list[str]:
    """Write `model/` under `folder`, whole or not at all; return the paths of its files relative to `folder`.

    All processes of a job call this; the first one writes, and the others return no files.

    The tokenizer's files, and the fields of `config.json` that transformers 5 no longer writes, are copied from the
    model with which the training began, so that older versions read the folder in the same way.
    """
    begun_with = Path(tokenizer.name_or_path)
    model.config.eos_token_id = chat.end_id
    model.config.pad_token_id = chat.pad_id
    setattr(model.config, DIGEST_FIELD, template_digest(chat.template))
    if generates:
        from transformers import GenerationConfig

        model.generation_config = GenerationConfig(
            eos_token_id=[chat.end_id, chat.ids[END_OF_TEXT]], pad_token_id=chat.pad_id, do_sample=False
        )
    temporary = folder / f".{MODEL_FOLDER}.{uuid.uuid4().hex[:8]}.tmp"
    if is_spread(model):
        _save_spread(model, temporary)
    elif is_first():
        model.save_pretrained(temporary)
    if not is_first():
        return []
    config = _json(begun_with / "config.json") | _json(temporary / "config.json") | {"use_cache": True}
    write_json(temporary / "config.json", {name: value for name, value in config.items() if name != VERSION_FIELD})
    max_length = int(model.config.max_position_embeddings)
    write_tokenizer(begun_with, temporary, max_length=max_length, eos_token=END, pad_token=PAD)
    write_text(temporary / TEMPLATE_FILE, chat.template)
    target = folder / MODEL_FOLDER
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    return sorted(str(path.relative_to(folder)) for path in target.rglob("*") if path.is_file())


def _save_spread(model: Any, folder: Path) -> None:
    """Write the files that `save_pretrained` writes of a model in one process."""
    if is_first():
        config = copy.deepcopy(model.config)
        del config.distributed_config
        config.dtype = str(model.dtype).removeprefix("torch.")
        config.architectures = [type(model).__name__.removeprefix("FSDP")]
        config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
    write_weights(model, folder)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))


def right_padded(rows: Sequence[Sequence[int]], pad_id: int, on: torch.device) -> dict[str, torch.Tensor]:
    """Return `input_ids` and `attention_mask` [rows, longest], padded on the right, on the device `on`."""
    mask = padded([[1] * len(row) for row in rows], 0, left=False)
    return {"input_ids": padded(rows, pad_id, left=False).to(on), "attention_mask": mask.to(on)}

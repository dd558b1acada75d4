"""Write the tokenizer's files of a model folder: the same files for every stage that makes a model.

transformers' own `save_pretrained` writes a class that versions before 5 do not know, and no limit on the length.
Standard library only.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from training.contract.artifact import write_json

TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
# Without this field transformers 4 also makes `token_type_ids`, which `generate` refuses for these models.
INPUTS = {"model_input_names": ["input_ids", "attention_mask"]}
COPIED = (TOKENIZER_FILE, "special_tokens_map.json")


def write_tokenizer(source: Path, folder: Path, *, max_length: int, **special_tokens: str) -> list[str]:
    """Copy the tokenizer of the folder `source` to `folder` and return the names of its files.

    `max_length` is the model's context in tokens. `special_tokens` replace those of the source by role, such as
    `eos_token`. Files that `source` lacks are left out.
    """
    names = [name for name in COPIED if (source / name).exists()]
    for name in names:
        shutil.copyfile(source / name, folder / name)
    if (source / CONFIG_FILE).exists():
        config = json.loads((source / CONFIG_FILE).read_text("utf-8"))
        write_json(folder / CONFIG_FILE, config | INPUTS | {"model_max_length": max_length} | special_tokens)
        names.append(CONFIG_FILE)
    return names

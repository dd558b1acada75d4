"""A model folder whose files have no content, and code of transformers and TRL that computes it as on GPUs.

It serves measurements of memory (`pedigree plan --measure`), which training/contract/process/without_content.py
explains.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import training.generate.model_folder  # noqa: F401 - first: it keeps what is imported after it offline and quiet

# isort: split
import torch
from accelerate.state import AcceleratorState
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.distributed import DistributedConfig, mixin, utils
from trl.kernels import chunked_logprob

from training.contract.model_files import WEIGHTS
from training.contract.process.without_content import Memory, alone_of, without_content
from training.contract.run_settings import RunSettings
from training.generate.chat_template import TEMPLATE_FILE
from training.generate.turns import CONTROL_TOKENS, END_OF_TEXT, PAD, template
from training.pretrain.models.export import hugging_face_config
from training.pretrain.models.shape import ModelConfig
from training.pretrain.tensor_files import header

LETTER = "a"  # the only text that the tokenizer knows, of one token
TILES = ("_forward_tile", "_backward_tile", "_addmm_fp32")  # of TRL's head; kernels of a GPU compute them in place


def write_empty_model(shape: ModelConfig, folder: Path, *, reward: bool = False) -> None:
    """Write a model of this shape as the chain's stages leave it, with a file that has the size of its weights alone.

    `reward`: as a reward model.

    Raise RecipeError if no class of transformers can run it.
    """
    config = hugging_face_config(shape, eos_id=1, pad_id=2)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.BPE(vocab={LETTER: 0}, merges=[]))
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT, "pad_token": PAD}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / TEMPLATE_FILE).write_text(template(), "utf-8")
    with torch.device("meta"):
        cls = AutoModelForSequenceClassification if reward else AutoModelForCausalLM
        model = cls.from_config(AutoConfig.for_model(**config, num_labels=1), dtype=torch.float32)
    weights = {name: one for name, one in model.state_dict().items() if name not in model.all_tied_weights_keys}
    beginning = header(weights.items())
    with (folder / WEIGHTS).open("wb") as stream:
        stream.write(beginning)
        stream.truncate(len(beginning) + sum(one.nbytes for one in weights.values()))


@contextmanager
def on_gpus(run: RunSettings) -> Iterator[Memory]:
    """Be the first process of a job of post-training or scoring, without content; yield what counts its memory."""
    processes, counted = run.nodes * run.processes, Memory()
    named = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": run.processes}
    named |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}  # where nobody is asked
    environment = {name: str(value) for name, value in named.items()} if processes > 1 else {}
    with patch.dict(os.environ, environment | {"ACCELERATE_TORCH_DEVICE": "cpu"}), ExitStack() as stack:
        stack.callback(AcceleratorState._reset_state, reset_partial_state=True)  # accelerate keeps it for the process
        if processes > 1:
            stack.enter_context(alone_of(processes))
        if run.shard > 1:
            shared = DistributedConfig(fsdp_size=run.shard, dp_replicate_size=processes // run.shard)
            mesh = utils.initialize_distributed_mesh(shared)  # as long as tensors have content

            def initialized(_: Any) -> Any:
                return mesh

            stack.enter_context(patch.object(mixin, "initialize_distributed_mesh", initialized))
        for tile in TILES:
            stack.enter_context(patch.object(chunked_logprob, tile, _in_place))
        stack.enter_context(without_content(counted))
        yield counted


def _in_place(*_: Any, **__: Any) -> None:
    """Take the place of a kernel that needs no memory."""

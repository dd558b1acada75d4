"""Tiny real models and tokenizers, made once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.generate.turns import template as project_template

SPECIAL = ["<|endoftext|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEXTS = [
    "Question: which colour has the sky? Answer: blue. The quick brown fox jumps over the lazy dog.",
    "The oven for the bake is heated to 180 degrees and the bread stays for 40 minutes.",
]


def make_tokenizer(folder: Path, *, template: bool) -> None:
    """A byte-level BPE tokenizer in `folder`, trained on two sentences."""
    from tests.training.posttrain.tiny import write_tokenizer

    write_tokenizer(folder, TEXTS, vocabulary=400)
    if template:
        (folder / "chat_template.jinja").write_text(project_template())


def make_model(folder: Path, *, template: bool, seed: int = 0, reward: bool = False) -> Path:
    """A random Llama with two layers in `folder`, in the transformers layout."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        num_labels=1,
        initializer_range=0.5,
    )
    model = (LlamaForSequenceClassification if reward else LlamaForCausalLM)(config)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    make_tokenizer(folder, template=template)
    return folder


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model without a chat template."""
    return make_model(tmp_path_factory.mktemp("models") / "base", template=False)


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template."""
    return make_model(tmp_path_factory.mktemp("models") / "chat", template=True, seed=1)


def commit(
    folder: Path, asset: str, *, inputs: tuple = (), gates: tuple = (), settings: dict | None = None, **more: object
):
    """Make what lies in `folder` the finished artifact of `asset`; returns it as a job's input."""
    from tests.jobs import commit_by_hand
    from training.contract.records import write_record

    record = {
        "stage": asset,
        "stage_version": "1",
        "recipe": "tiny",
        "inputs": write_record(list(inputs)),
        "settings": settings or {},
        "code": {"digest": "", "modules": {}},
        "libraries": {},
        "metrics": {},
        "gates": list(gates),
        "notes": {},
        "seconds": 1.0,
        "cost": {"wall_seconds": 1.0, "cpu_seconds": 1.0, "peak_memory_bytes": 1},
        "code_revision": "",
        "seed": 0,
    }
    called = {"partition": "tiny", "fingerprint": f"{asset}-fingerprint"}
    return commit_by_hand(folder, asset, **(record | called | more))


def make_job(stage: str, asset: str, output: Path, settings: dict, inputs: tuple):
    """A job as the bridge would write it."""
    from tests.jobs import job_by_hand

    called = {"asset": asset, "partition": "tiny", "recipe": "tiny", "fingerprint": f"{asset}-fingerprint"}
    return job_by_hand(stage, output, settings, inputs, **called)

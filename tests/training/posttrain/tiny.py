"""A tiny model with a trained tokenizer, toy rows, and jobs written by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.jobs import commit_by_hand, job_by_hand
from training.contract import artifact
from training.contract.job import InputArtifact, Job
from training.contract.run_settings import RunSettings
from training.contract.running.runner import run_job
from training.generate.turns import CONTROL_TOKENS
from training.stages import STAGES

# A stage's own imports: this keeps every library in the test process offline and quiet too.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

FRUITS = ("apple", "pear", "plum", "cherry", "fig", "quince", "grape", "melon")
COLOURS = ("red", "green", "blue", "pink", "amber", "brown", "violet", "yellow")


def question(fruit: str) -> str:
    return f"Which colour has the {fruit}?"


def conversations() -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": question(fruit)},
                {"role": "assistant", "content": f"The {fruit} is {colour}."},
            ]
        }
        for fruit, colour in zip(FRUITS, COLOURS, strict=True)
    ] * 4


def preference_rows(number: int = 48) -> list[dict[str, Any]]:
    """Polite answers are preferred: a difference that any model can see."""
    rows = []
    for i in range(number):
        fruit, colour = FRUITS[i % 8], COLOURS[(i * 3 + i // 8) % 8]
        rows.append(
            {
                "prompt": f"{question(fruit)} ({i})",
                "chosen": f"The {fruit} is {colour}. Thank you!",
                "rejected": f"{colour} {colour} {colour}",
                "answer": colour,
            }
        )
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return str(path)


def write_tokenizer(folder: Path, texts: Sequence[str] = (), *, vocabulary: int = 360) -> Path:
    """`tokenizer.json` and its config as the tokenizer stage leaves them: control tokens, EOS is the end of text.

    It is trained on `texts`, or else on the conversations.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = texts or [message["content"] for row in conversations() for message in row["messages"]]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_model(folder: Path, *, seed: int = 0, width: int = 32, layers: int = 2, tied: bool = True) -> Path:
    """A random Llama beside a trained tokenizer, in the transformers layout."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    write_tokenizer(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size(),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def commit(root: Path, asset: str) -> InputArtifact:
    """Make a folder that a test filled by hand an artifact."""
    return commit_by_hand(root / asset, asset, partition="toy", fingerprint="0" * 32)


def made(root: Path, asset: str) -> InputArtifact:
    """A finished artifact as an input."""
    found = artifact.find(root / asset)
    assert found is not None
    return InputArtifact(asset=asset, partition="toy", fingerprint="0" * 32, digest=found.digest, path=str(found.path))


def job(stage: str, output: Path, settings: dict[str, Any], inputs: tuple[InputArtifact, ...] = (), **run: Any) -> Job:
    called = {"asset": output.name, "partition": "toy", "recipe": "toy", "fingerprint": "0" * 32}
    return job_by_hand(stage, output, settings, inputs, run=RunSettings(**{"threads": 1, **run}), **called)


def run(
    stage: str, output: Path, settings: dict[str, Any], inputs: tuple[InputArtifact, ...] = (), **options: Any
) -> dict[str, Any]:
    """Run a stage to its artifact; the artifact's record. Stages that read rows get an empty index of benchmarks."""
    if stage in ("instructions", "preferences", "prompts") and not inputs:
        settings, inputs = {"decontaminate": {}, **settings}, (benchmark_index(output.parent),)
    run_job(job(stage, output, settings, inputs, **options), STAGES)
    return json.loads((output / "artifact.json").read_text("utf-8"))


def benchmark_index(root: Path, *benchmarks: dict[str, Any]) -> InputArtifact:
    """The index of these benchmarks, made once in each folder."""
    settings = {"decontaminate": {"benchmarks": list(benchmarks)}}
    run_job(job("benchmarks", root / "benchmark_index", settings), STAGES)
    return made(root, "benchmark_index")


def gate(record: dict[str, Any], name: str) -> dict[str, Any]:
    return next(gate for gate in record["gates"] if gate["name"] == name)


def shares_opened(monkeypatch: Any) -> list[int]:
    """A list that takes the shares in which each model is opened from now on; all are opened whole, by this process."""
    from training.generate import model_folder

    opened: list[int] = []

    def options_for(shard: int) -> dict[str, Any]:
        opened.append(shard)
        return {}

    monkeypatch.setattr(model_folder, "options_for", options_for)
    return opened

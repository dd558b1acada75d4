"""A checkpoint of somebody else as the hub has them: random weights, a real tokenizer; and conversations and pairs."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.own_pages import NUMBERS, sentences


def write_model(folder: Path, *, kind: str = "llama", pieces: str = "", **changes: object) -> None:
    """Write a model of a few thousand weights and a byte-level tokenizer with a BOS before texts, by transformers.

    `pieces`: a tokenizer of pieces, in which ▁ stands for a space: "plain", or "prepended" with one before each text.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    vocabulary = _tokenizer(pieces=pieces).get_vocab_size()
    shape: dict[str, object] = {
        "vocab_size": vocabulary + 3,  # padded, as many published models are
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape | changes))
    model.save_pretrained(folder)
    write_tokenizer(folder, pieces=pieces)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\nA model.\n")


def write_tokenizer(folder: Path, *, pieces: str = "") -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    _tokenizer(pieces=pieces).save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _tokenizer(*, pieces: str):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE(byte_fallback=bool(pieces)))
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet = [] if pieces else sorted(pre_tokenizers.ByteLevel.alphabet())
    if pieces:
        before, after = [normalizers.Prepend("▁")], [decoders.Strip(" ", 1, 0)]
        before, after = (before, after) if pieces == "prepended" else ([], [])
        made.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
        made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *after]
        made.decoder = decoders.Sequence(steps)
    else:
        made.normalizer = normalizers.NFC()
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", *(bytes_ if pieces else ())],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    made.train_from_iterator([sentences(n) for n in range(4)], trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    data = json.loads(made.to_str())  # in which bytes are plain entries of the vocabulary
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] not in bytes_]
    return Tokenizer.from_str(json.dumps(data))


def write_rows(folder: Path, *, conversations: int = 48, pairs: int = 24) -> None:
    """Write `instructions.jsonl` and `pairs.jsonl`: short questions about numbers, and polite and rude answers."""
    rng = random.Random(0)
    asked = [(f"Name number {rng.randrange(900)} after {rng.choice(NUMBERS)}.", rng.choice(NUMBERS)) for _ in range(99)]
    talks = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": f"It is {a}."}]}
        for q, a in asked[:conversations]
    ]
    chosen = [{"prompt": q, "chosen": f"It is {a}, gladly.", "rejected": f"{a} now go"} for q, a in asked[-pairs:]]
    for name, rows in (("instructions", talks), ("pairs", chosen)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

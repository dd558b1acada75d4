"""Model folders as a stranger may hand them in: one sound folder, and what is done to it in each case."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.own_model import write_model

WEIGHTS, CONFIG, TOKENIZER, SETTINGS = "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"
Change = Callable[[Path], object]


def write(name: str, data: bytes | str) -> Change:
    return lambda folder: (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def fields(name: str, **changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def template(text: str) -> Change:
    return write("chat_template.jinja", text)


def gone(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names]


def header(change: Callable[[dict[str, Any]], object] | bytes, *, length: int | None = None) -> Change:
    """Write the weights' header anew, with its length or another one."""

    def write_header(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        text = change
        if not isinstance(change, bytes):
            found = json.loads(data[8 : 8 + size])
            change(found)
            text = json.dumps(found).encode()
        (folder / WEIGHTS).write_bytes(
            struct.pack("<Q", len(text) if length is None else length) + text + data[8 + size :]
        )

    return write_header


def first(field: str, value: Any) -> Change:
    """Give the first tensor another field."""
    return header(
        lambda found: next(one for name, one in found.items() if name != "__metadata__").update({field: value})
    )


def cut(name: str, share: float) -> Change:
    return lambda folder: os.truncate(folder / name, int((folder / name).stat().st_size * share))


def in_tokenizer(change: Callable[[dict[str, Any]], object]) -> Change:
    def write_anew(folder: Path) -> None:
        found = json.loads((folder / TOKENIZER).read_text())
        change(found)
        (folder / TOKENIZER).write_text(json.dumps(found))

    return write_anew


def index(*names: str, **more: Any) -> Change:
    """Put an index in place of the one file of weights."""

    def write_index(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "one.safetensors")
        placed = {f"weight{n}": name for n, name in enumerate(names)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed} | more))

    return write_index


def not_finite(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-4:] = struct.pack("<f", float("nan"))
    (folder / WEIGHTS).write_bytes(data)


def pipe(name: str) -> Change:
    return lambda folder: os.mkfifo(folder / name)


def device(name: str) -> Change:
    return lambda folder: ((folder / name).unlink(missing_ok=True), (folder / name).symlink_to("/dev/zero"))


def added(number: int, text: str) -> dict[str, Any]:
    return {"id": number, "content": text, "special": True} | dict.fromkeys(
        ("single_word", "lstrip", "rstrip", "normalized"), False
    )


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
CASES: dict[str, Change] = {
    "folder is empty": lambda folder: [path.unlink() for path in list(folder.iterdir())],
    "no config.json": gone(CONFIG),
    "no tokenizer.json": gone(TOKENIZER),
    "no weights": gone(WEIGHTS),
    "config.json is empty": write(CONFIG, ""),
    "config.json is a list": write(CONFIG, "[]"),
    "config.json is cut": cut(CONFIG, 0.5),
    "config.json is no UTF-8": write(CONFIG, b'{"model_type": "\xff"}'),
    "config.json is nested 100,000 deep": write(CONFIG, '{"a":' * 100_000 + "1" + "}" * 100_000),
    "config.json is nested 60 deep": write(CONFIG, '{"a":' * 60 + "1" + "}" * 60),
    "config.json names a key twice": write(CONFIG, '{"model_type": "llama", "model_type": "qwen3"}'),
    "config.json has NaN": fields(CONFIG, rms_norm_eps=float("nan")),
    "config.json has a number of 5,000 digits": write(CONFIG, f'{{"vocab_size": {"9" * 5000}}}'),
    "config.json has 20 MB": fields(CONFIG, note="x" * 20_000_000),
    "10⁹ layers": fields(CONFIG, num_hidden_layers=10**9),
    "minus one layer": fields(CONFIG, num_hidden_layers=-1),
    "layers in words": fields(CONFIG, num_hidden_layers="two"),
    "half a layer": fields(CONFIG, num_hidden_layers=1.5),
    "no layers": fields(CONFIG, num_hidden_layers=0),
    "10¹² wide": fields(CONFIG, hidden_size=10**12),
    "10¹² tokens": fields(CONFIG, vocab_size=10**12),
    "no heads": fields(CONFIG, num_attention_heads=0),
    "heads that do not divide": fields(CONFIG, num_attention_heads=7),
    "no model_type": fields(CONFIG, model_type=None),
    "model_type is unknown": fields(CONFIG, model_type="gizmo"),
    "model_type is a list": fields(CONFIG, model_type=["llama"]),
    "code of its own": fields(CONFIG, model_type="gizmo", auto_map={"AutoModelForCausalLM": "modeling.Gizmo"}),
    "quantized weights": fields(CONFIG, quantization_config={"quant_method": "gptq", "bits": 4}),
    "rotary positions in two ways": fields(CONFIG, rope_scaling={"rope_type": "linear", "factor": 2.0}),
    "rope_scaling is a word": fields(CONFIG, rope_scaling="yes", rope_parameters="yes"),
    "end of text in words": fields(CONFIG, eos_token_id="</s>"),
    "ends of text in words": fields("generation_config.json", eos_token_id=["</s>"]),
    "end of text of 10³⁰": fields("generation_config.json", eos_token_id=10**30),
    "end of text behind the vocabulary": fields(CONFIG, eos_token_id=10**6),
    "beginning of text of half a token": fields(CONFIG, bos_token_id=0.5),
    "norm with nothing": fields(CONFIG, rms_norm_eps=0),
    "norm in words": fields(CONFIG, rms_norm_eps="1e-6"),
    "rotary base in words": fields(CONFIG, rope_parameters={"rope_type": "default", "rope_theta": "10000"}),
    "rotary base of nothing": fields(CONFIG, rope_theta=0),
    "tied in words": fields(CONFIG, tie_word_embeddings="no"),
    **{
        f"{name} than the weights": fields(CONFIG, **changes)
        for name, changes in {
            "fewer tokens": {"vocab_size": 100},
            "one token more": {"vocab_size": 404},
            "half as wide": {"hidden_size": 16},
            "a narrower MLP": {"intermediate_size": 32},
            "fewer layers": {"num_hidden_layers": 1},
            "more heads of keys": {"num_key_value_heads": 4},
        }.items()
    },
    "no head": header(lambda found: found.update(other=found.pop("lm_head.weight"))),
    "layers of an unknown kind": fields(CONFIG, layer_types=["zebra", "zebra"]),
    "kinds of fewer layers": fields(CONFIG, layer_types=["full_attention"]),
    "kinds of layers in one word": fields(CONFIG, layer_types="full_attention"),
    "numbers of an unknown type": fields(CONFIG, dtype="zebra"),
    "an unknown function": fields(CONFIG, hidden_activation="zebra"),
    "more dropped than there is": fields(CONFIG, attention_dropout=7),
    "no end of text in a list": fields(CONFIG, eos_token_id=[]),
    "no ends of text in a list": fields("generation_config.json", eos_token_id=[]),
    "beginnings of text": fields(CONFIG, bos_token_id=[0, 1]),
    "a pipe as JSON": pipe("other.json"),
    "a device as config.json": device(CONFIG),
    "weights elsewhere": fields(CONFIG, transformers_weights="../x.bin"),
    "weights are empty": write(WEIGHTS, b""),
    "weights of four bytes": write(WEIGHTS, b"abcd"),
    "weights are cut": cut(WEIGHTS, 0.7),
    "header is cut": cut(WEIGHTS, 0.01),
    "header of 2⁶⁰ bytes": header(lambda _: None, length=1 << 60),
    "header of 2⁶⁴-1 bytes": header(lambda _: None, length=(1 << 64) - 1),
    "header is no JSON": header(b"{nothing"),
    "header is a list": header(b"[]"),
    "header is nested": header(b'{"a":' * 100_000),
    "header names a tensor twice": header(b'{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "a": {}}'),
    "tensor of another type": first("dtype", "F16"),
    "tensor of whole numbers": first("dtype", "I32"),
    "tensor of an unknown type": first("dtype", "F12"),
    "tensor without a place": first("data_offsets", None),
    "tensor behind the end": first("data_offsets", [0, 1 << 40]),
    "tensor of 10³⁰ values": first("shape", [10**15, 10**15]),
    "tensor with a shape below zero": first("shape", [-1, 32]),
    "no tensor": write(WEIGHTS, struct.pack("<Q", 2) + b"{}"),
    "a value that is no number": not_finite,
    "pickle only": lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
    "index names ../x": index("../one.safetensors"),
    "index names a pickle": index("one.bin"),
    "index names no file": index("two.safetensors"),
    "index is a list": lambda folder: (index()(folder), write("model.safetensors.index.json", "[]")(folder)),
    "index without a map": index(weight_map=None),
    "index of other weights": index("one.safetensors"),
    "an adapter": write("adapter_config.json", "{}"),
    "tokenizer is empty": write(TOKENIZER, ""),
    "tokenizer is a list": write(TOKENIZER, "[]"),
    "tokenizer is cut": cut(TOKENIZER, 0.5),
    "tokenizer is nested": write(TOKENIZER, "[" * 100_000),
    "tokenizer without a vocabulary": in_tokenizer(lambda found: found["model"].update(vocab={})),
    "tokenizer whose vocabulary is a list": in_tokenizer(lambda found: found["model"].update(vocab=[])),
    "tokenizer of an unknown kind": in_tokenizer(lambda found: found["model"].update(type="Gizmo")),
    "tokenizer with an id of 10¹⁰": in_tokenizer(lambda found: found["model"]["vocab"].update(zzz=10**10)),
    "tokenizer with an id below zero": in_tokenizer(lambda found: found["model"]["vocab"].update(zzz=-1)),
    "tokenizer with a merge of nothing": in_tokenizer(lambda found: found["model"]["merges"].append(["§", "§§"])),
    "tokenizer with a pattern that is none": in_tokenizer(
        lambda found: found.update(pre_tokenizer={**SPLIT, "pattern": {"Regex": "(("}})
    ),
    "tokenizer with a pattern that explodes": in_tokenizer(
        lambda found: found.update(pre_tokenizer={**SPLIT, "pattern": {"Regex": "(a|a?)+b"}})
    ),
    "tokenizer that makes texts a million times longer": in_tokenizer(
        lambda found: found.update(
            normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10_000_000}
        )
    ),
    **{
        f"tokenizer with {name}": in_tokenizer(lambda found, tokens=tokens: found["added_tokens"].extend(tokens))
        for name, tokens in {
            "an added id of 10⁹": [added(10**9, "<a>")],
            "an added id of another token": [added(5, "<a>")],
            "one added token twice": [added(400, "<a>"), added(401, "<a>")],
        }.items()
    },
    "tokenizer whose settings name other tokens": fields(SETTINGS, added_tokens_decoder={"5": {"content": "<zzz>"}}),
    "tokenizer whose settings name more tokens": fields(SETTINGS, added_tokens_decoder={"9" * 30: {"content": "a"}}),
    "tokenizer whose settings name no tokens": fields(SETTINGS, added_tokens_decoder={"5": 5}),
    "tokenizer whose settings list tokens": fields(SETTINGS, added_tokens_decoder=["<zzz>"]),
    "tokenizer without an end of text": fields(SETTINGS, eos_token="gone"),
    "tokenizer settings are a list": write(SETTINGS, "[]"),
    "tokenizer settings are no JSON": write(SETTINGS, "{"),
    "tokenizer elsewhere": fields(SETTINGS, fast_tokenizer_files=["tokenizer.99.json"]),
    "template that loops": template(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
        "{% endfor %}{% endfor %}{% endfor %}"
    ),
    "template that writes without end": template("{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}"),
    "template that writes without end when it is asked": template(
        "{% if add_generation_prompt %}{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endif %}"
    ),
    "template that takes all memory": template("{{ 'x' * 99999999999 }}"),
    "template that computes without end": template("{{ 9 ** (9 ** (9 ** 9)) }}"),
    "template that calls itself": template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    "template that reaches for the process": template("{{ messages.__class__.__mro__[1].__subclasses__() }}"),
    "template that imports a file": template("{% include '/etc/passwd' %}"),
    "template that is broken": template("{% for message in"),
    "template that divides by nothing": template("{{ 1 / 0 }}"),
    "template that is no UTF-8": write("chat_template.jinja", b"\xff"),
    "template that is a pipe": pipe("chat_template.jinja"),
    "template that is a device": device("chat_template.jinja"),
    "template that is a number": fields(SETTINGS, chat_template=7),
}  # fmt: skip


_ORDER = list(CASES)
MAY = {  # what may be wrong where only the tokenizer is taken: the weights, and what config.json says of them
    "adopt.tokenizer": (
        *("no config.json", "no weights"),
        *_ORDER[_ORDER.index("10⁹ layers") : _ORDER.index("tokenizer is empty")],
    )
}
IN_WEIGHTS = ("a value that is no number",)  # found when the weights are read, not when the recipe is


def sound(folder: Path) -> Path:
    """Write the sound folder of which every case is a changed copy."""
    write_model(folder)
    return folder


def changed(case: str, good: Path, folder: Path) -> Path:
    """Return a copy of the sound folder to which a case was done."""
    shutil.copytree(good, folder)
    CASES[case](folder)
    return folder

"""A model folder of the transformers layout as one file of the form GGUF, which llama.cpp and what builds on it open.

llama.cpp's own converter knows a tokenizer by what it makes of one text, and so none that a recipe trained. Here the
tokenizer is known by the pattern that cuts its texts. Names and order of the weights, and the form of the file, are
those of the package `gguf`, which llama.cpp's authors publish.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from training.contract.job import DataError
from training.contract.model_files import CONFIG_FILE, TIED, open_weights, tensor_of
from training.contract.records import no_such

KINDS = ("f32", "bf16", "f16", "q8_0")  # of the matrices; the vectors are always f32
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "olmo2": "olmo2"}
IN_PAIRS = ("llama",)  # architectures whose rotary positions turn neighbours and not halves
HEADS = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
TEMPLATE_FILE = "chat_template.jinja"
MARKED = re.compile(r"\{%(-?) *(?:end)?generation *(-?)%\}")  # what is trained, for TRL; llama.cpp has no such block
LARGEST_F16, BLOCK = 65_504, 32
PATTERNS = {  # llama.cpp's name of a cut, by the pattern of tokenizer.json
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": (
        "qwen2"
    ),
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+": "llama-bpe",
}
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's kinds of tokens


class GgufTokenizer(NamedTuple):
    """A tokenizer as GGUF has it: the cut's name, tokens in the order of their numbers, their kinds, and the merges."""

    cut: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str]


def check_gguf(folder: Path, kind: str) -> None:
    """Raise DataError unless the model of a folder can be written as GGUF with matrices of this kind."""
    if kind not in KINDS:
        raise DataError(no_such(f"--gguf {kind}", kind, KINDS))
    if importlib.util.find_spec("gguf") is None:
        raise DataError("--gguf: the package gguf is not installed; pip install 'pedigree[gguf]'")
    config = _json(folder / CONFIG_FILE)
    if (said := config.get("model_type")) not in ARCHITECTURES:
        raise DataError(f"--gguf: models of the type {said} are not written; there are {', '.join(ARCHITECTURES)}")
    if config.get("quantization_config"):
        raise DataError("--gguf: the weights are quantized already; write it of the model that they were made of")
    if (act := config.get("hidden_act", "silu")) != "silu":
        raise DataError(f"--gguf: a {said} with hidden_act {act} is not written; llama.cpp computes silu for it")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (turned := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise DataError(f"--gguf: rotary positions of the type {turned} are not written, only those without scaling")
    looks_back = set(config.get("layer_types") or ()) - {"full_attention"}
    if looks_back or (said == "mistral" and config.get("sliding_window")):
        raise DataError("--gguf: layers that look back over a window alone are not written, only full attention")
    _words(folder)


def write_gguf(folder: Path, target: Path, *, kind: str, name: str) -> None:
    """Write the model of a folder, its tokenizer and its chat template to the file `target`, which appears when whole.

    `kind` is the form of the matrices: `q8_0` has blocks of 32 numbers of 8 bits with a scale; a matrix whose rows such
    blocks do not divide is kept as `f16`, as llama.cpp does. Raise DataError for a model that cannot be written.
    """
    import gguf

    check_gguf(folder, kind)
    config, part = _json(folder / CONFIG_FILE), target.with_name(f"{target.name}.part")
    writer = gguf.GGUFWriter(part, ARCHITECTURES[config["model_type"]])
    writer.add_name(name)
    writer.add_file_type({"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_shape(writer, config)
    _add_words(writer, folder, config)
    try:
        with open_weights(folder) as weights:
            _write_weights(writer, folder, weights, config, kind)
        writer.close()
        os.replace(part, target)
    finally:
        writer.close()
        part.unlink(missing_ok=True)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def _add_shape(writer: Any, config: Mapping[str, Any]) -> None:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    writer.add_vocab_size(config["vocab_size"])


# Tokenizer


def _words(folder: Path) -> GgufTokenizer:
    """Return the tokenizer of a model folder. Raise DataError for one that llama.cpp would not read as it is."""
    path = folder / "tokenizer.json"
    data = _json(path)
    model, normal = data["model"], (data.get("normalizer") or {}).get("type", "NFC")
    cut = _cut(data.get("pre_tokenizer") or {})
    plain = not any(model.get(name) for name in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    if model["type"] != "BPE" or not plain or cut is None or normal != "NFC":
        raise DataError(
            f"--gguf: {path}: only byte-level BPE is written whose texts are cut as by a recipe's tokenizer, GPT-2,"
            " Llama 3 or Qwen 2; llama.cpp would cut and number other texts than the model learned"
        )
    if bool(model.get("ignore_merges")) != (cut == "llama-bpe"):
        raise DataError(f"--gguf: {path}: ignore_merges is {model.get('ignore_merges')}; llama.cpp reads it otherwise")
    added = {one["id"]: one for one in data.get("added_tokens", [])}
    tokens = {number: token for token, number in model["vocab"].items()}
    tokens |= {number: one["content"] for number, one in added.items()}
    kinds = {number: CONTROL if one["special"] else USER_DEFINED for number, one in added.items()}
    size = max(tokens) + 1
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    return GgufTokenizer(
        cut=cut,
        tokens=[tokens.get(number, f"[UNUSED{number}]") for number in range(size)],
        kinds=[kinds.get(number, NORMAL if number in tokens else UNUSED) for number in range(size)],
        merges=merges,
    )


def _cut(given: Mapping[str, Any]) -> str | None:
    """Return llama.cpp's name of how a tokenizer cuts its texts; None if it has none."""
    steps = given.get("pretokenizers", [given])
    if any(step.get("add_prefix_space") for step in steps):
        return None
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return "gpt-2" if steps[0].get("use_regex", True) else None
    if kinds != ["Split", "ByteLevel"] or steps[1].get("use_regex", True):
        return None
    cut = steps[0]
    is_kept = cut.get("behavior") == "Isolated" and not cut.get("invert")
    return PATTERNS.get(cut["pattern"].get("Regex", "")) if is_kept else None


def _add_words(writer: Any, folder: Path, config: Mapping[str, Any]) -> None:
    from tokenizers import Tokenizer

    words, more = _words(folder), _json(folder / "generation_config.json")
    unused = range(len(words.tokens), config["vocab_size"])  # rows of the embeddings without a token
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words.cut)
    writer.add_token_list([*words.tokens, *(f"[UNUSED{number}]" for number in unused)])
    writer.add_token_types([*words.kinds, *(UNUSED for _ in unused)])
    writer.add_token_merges(words.merges)
    ends = more.get("eos_token_id", config.get("eos_token_id"))
    ends = ends if isinstance(ends, list) else [ends]
    begin, pad = config.get("bos_token_id"), config.get("pad_token_id")
    for add, number in zip(
        (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_bos_token_id, writer.add_pad_token_id),
        (*(*ends, None)[:2], begin, pad),
        strict=True,
    ):
        if number is not None:
            add(number)
    framed = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a").ids
    writer.add_add_bos_token(begin is not None and framed[:1] == [begin])
    writer.add_add_eos_token(ends[0] is not None and framed[-1:] == ends[:1])
    writer.add_add_space_prefix(False)
    if (template := folder / TEMPLATE_FILE).is_file():
        writer.add_chat_template(MARKED.sub(r"{#\1 \2#}", template.read_text("utf-8")))


# Weights


def _write_weights(writer: Any, folder: Path, weights: Mapping[str, Any], config: Mapping[str, Any], kind: str) -> None:
    import gguf
    import numpy

    arch = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(
        next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), config["num_hidden_layers"]
    )
    tied = TIED if config.get("tie_word_embeddings") else {}
    placed = {}  # in the order of the model, as llama.cpp's converter writes them
    for here in sorted(weights.keys() - tied.keys(), key=_place):
        if (there := names.get_name(here, (".weight", ".bias"))) is None:
            raise DataError(f"--gguf: {folder}: {here} has no name in GGUF; a {arch} there lacks this weight")
        form = _form(weights[here].get_slice(here).get_shape(), kind)
        placed[here] = gguf.GGMLQuantizationType[form.upper()]
        size = gguf.quant_shape_to_byte_shape(weights[here].get_slice(here).get_shape(), placed[here])
        writer.add_tensor_info(there, size, numpy.dtype(numpy.uint8), math.prod(size), raw_dtype=placed[here])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for here, form in placed.items():
        values = tensor_of(folder, weights, here).float().numpy()
        if arch in IN_PAIRS and (heads := HEADS.get(here.split(".")[-2])):
            values = _in_pairs(values, int(config.get(heads) or config["num_attention_heads"]))
        if form.name == "F16" and abs(values).max() > LARGEST_F16:
            raise DataError(
                f"--gguf: {folder}: {here} has values beyond {LARGEST_F16} that f16 lacks; take --gguf bf16"
            )
        writer.write_tensor_data(gguf.quants.quantize(values, form))


def _place(name: str) -> tuple[int, str]:
    number = re.search(r"\.(\d+)\.", name)
    return (int(number[1]) if number else -1, name)


def _form(shape: Sequence[int], kind: str) -> str:
    if len(shape) == 1:
        return "f32"
    return "f16" if kind == "q8_0" and shape[-1] % BLOCK else kind


def _in_pairs(values: Any, heads: int) -> Any:
    """Return a projection whose rotary positions turn neighbours, of one (heads × width, …) where they turn halves."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)

"""A model as one GGUF file: read back by transformers and by the package `gguf`, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.model_folders import fields, in_tokenizer
from tests.own_pages import sentences
from training.contract.job import DataError
from training.data.tokens.tokenizer import PATTERN, train
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.quantize.gguf_file import KINDS, PATTERNS, check_gguf, write_gguf

TEXT = "The oven isn't hot, is it? 1234  sums\n\nof 34 <|end|> – ça va, 東京!"
TEMPLATE = "{%- for message in messages -%}{%- generation -%}{{ message.content }}{%- endgeneration -%}{%- endfor -%}"
SHAPE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def drawn(folder: Path, family: str, **more) -> Path:
    """Write a model of a family with drawn weights, norms and biases among them, and a recipe's tokenizer."""
    words = train([sentences(n) for n in range(4)], TokenizerRecipe(vocabulary=400, snapshots=("any",)))
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        family, vocab_size=words.get_vocab_size() + 3, **SHAPE | {"eos_token_id": 0, "bos_token_id": 0} | more
    )
    model = AutoModelForCausalLM.from_config(config)
    for name, weights in model.named_parameters():
        if weights.dim() == 1:
            torch.nn.init.normal_(weights, 0.0 if name.endswith("bias") else 1.0, 0.3)
    model.save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return drawn(tmp_path_factory.mktemp("drawn") / "model", "qwen3")


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("mistral", {"sliding_window": None, "head_dim": 24}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 128}),  # transformers reads no other width of qwen3
    ],
)
def test_transformers_reads_the_same_model_and_the_same_tokens(tmp_path, family, more):
    folder = drawn(tmp_path / "model", family, **more)
    write_gguf(folder, folder / "m.gguf", kind="f32", name="m")
    here, there = (AutoModelForCausalLM.from_pretrained(folder, gguf_file=name).eval() for name in (None, "m.gguf"))
    row = torch.arange(60)[None]
    with torch.inference_mode():
        torch.testing.assert_close(there(row).logits, here(row).logits, rtol=0, atol=1e-5)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids
    assert AutoTokenizer.from_pretrained(folder, gguf_file="m.gguf")(TEXT, add_special_tokens=False).input_ids == ids


def test_numbers_of_8_bits_lie_within_half_a_scale_and_other_rows_stay_in_16(tmp_path):
    folder = drawn(tmp_path / "model", "qwen3", intermediate_size=80)
    write_gguf(folder, tmp_path / "m.gguf", kind="q8_0", name="m")
    whole, seen = load_file(folder / "model.safetensors"), set()
    read = {one.name: one for one in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for there, here in (
        ("blk.1.ffn_up", "layers.1.mlp.up_proj"),
        ("blk.0.ffn_down", "layers.0.mlp.down_proj"),
    ):
        one, wanted = read[f"{there}.weight"], whole[f"model.{here}.weight"].numpy()
        found = gguf.quants.dequantize(one.data, one.tensor_type).reshape(wanted.shape)
        seen.add(one.tensor_type.name)
        blocks = abs(wanted).reshape(-1, 16).max()
        assert 0 < abs(found - wanted).max() <= blocks / 127 * 0.51, there
    assert seen == {"Q8_0", "F16"} and read["output_norm.weight"].tensor_type.name == "F32"


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bytes_are_written_each_time(tmp_path, folder, kind):
    for name in ("a.gguf", "b.gguf"):
        write_gguf(folder, tmp_path / name, kind=kind, name="m")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "b.gguf"]


def test_what_ends_an_answer_and_which_tokens_are_marks_is_told(tmp_path, folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 0]}))
    write_gguf(folder, tmp_path / "m.gguf", kind="f16", name="kitchen")
    told = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "m.gguf").fields.items()}
    tokens, kinds = told["tokenizer.ggml.tokens"], told["tokenizer.ggml.token_type"]
    marks = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    assert [tokens[n] for n, kind in enumerate(kinds) if kind == 3] == [one["content"] for one in marks]
    assert kinds[-3:] == [5, 5, 5]  # rows of the embeddings without a token
    assert (told["tokenizer.ggml.eos_token_id"], told["tokenizer.ggml.eot_token_id"]) == (5, 0)
    assert told["general.name"] == "kitchen" and told["tokenizer.ggml.add_bos_token"] is False
    assert "generation" not in told["tokenizer.chat_template"] and "messages" in told["tokenizer.chat_template"]


def test_a_recipes_own_cut_is_known():
    assert PATTERNS[PATTERN] == "qwen2"


def other_cut(data):
    cut = data["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    cut["Regex"] = cut["Regex"].replace(r"\p{N}|", r"\p{N}+|", 1)


REFUSED = {
    "models of the type gpt2": fields("config.json", model_type="gpt2"),
    "hidden_act gelu": fields("config.json", hidden_act="gelu"),
    "of the type yarn": fields("config.json", rope_parameters={"rope_type": "yarn", "factor": 2.0}),
    "look back over a window": fields("config.json", layer_types=["full_attention", "sliding_attention"]),
    "quantized already": fields("config.json", quantization_config={"quant_method": "torchao"}),
    "cut and number other texts": in_tokenizer(other_cut),
    "ignore_merges is True": in_tokenizer(lambda data: data["model"].update(ignore_merges=True)),
    "byte-level BPE": in_tokenizer(lambda data: data.update(normalizer={"type": "Lowercase"})),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_llama_cpp_would_read_otherwise_is_refused(tmp_path, folder, sentence):
    shutil.copytree(folder, tmp_path / "model")
    REFUSED[sentence](tmp_path / "model")
    with pytest.raises(DataError, match=sentence):
        check_gguf(tmp_path / "model", "f32")


def test_another_kind_and_a_weight_beyond_16_bits_are_refused_and_nothing_is_left(tmp_path, folder):
    with pytest.raises(DataError, match="--gguf q4; there are f32, bf16, f16, q8_0"):
        check_gguf(folder, "q4")
    shutil.copytree(folder, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] = 70_000.0
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="beyond 65504 that f16 lacks; take --gguf bf16"):
        write_gguf(tmp_path / "model", tmp_path / "m.gguf", kind="f16", name="m")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    write_gguf(tmp_path / "model", tmp_path / "m.gguf", kind="bf16", name="m")
    assert numpy.isfinite(gguf.GGUFReader(tmp_path / "m.gguf").tensors[0].data.view(numpy.uint16)).all()

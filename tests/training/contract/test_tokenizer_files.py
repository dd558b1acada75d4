"""The tokenizer's files that every model folder gets."""

from __future__ import annotations

import json

from transformers import PreTrainedTokenizerFast

from tests.own_model import write_tokenizer as write_given
from training.contract.tokenizer_files import write_tokenizer


def test_a_tokenizer_gives_a_model_only_what_its_generate_takes(tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "model").mkdir()
    write_given(tmp_path / "given")
    write_tokenizer(tmp_path / "given", tmp_path / "model", max_length=64)
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    assert config["model_input_names"] == [
        "input_ids",
        "attention_mask",
    ]  # transformers 4 adds token_type_ids otherwise
    assert list(PreTrainedTokenizerFast.from_pretrained(tmp_path / "model")("a")) == ["input_ids", "attention_mask"]

"""Bits per byte on texts that a model was not pretrained on."""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("torch")

import torch

from evaluation.exams.local_model import LocalModel
from evaluation.exams.unseen_text import bits_per_byte, read_texts
from training.contract.job import DataError
from training.recipe.settings.evaluation import EvaluationRecipe


def test_bits_per_byte_are_those_of_the_models_own_loss(base_folder):
    from transformers import AutoModelForCausalLM

    text = "The bread is brown – and so is the fox."
    model = LocalModel(base_folder, batch_size=2)
    tokens = torch.tensor([[model.eot_token_id, *model.tok_encode(text)]])
    stock = AutoModelForCausalLM.from_pretrained(base_folder, local_files_only=True)
    with torch.no_grad():
        nats = stock(input_ids=tokens, labels=tokens).loss.item() * (tokens.shape[1] - 1)
    found = bits_per_byte(model, [text])
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-4)
    assert found["interval"] is None and found["bytes"] == len(text.encode())
    two = bits_per_byte(model, [text, "bread " * 200])
    assert two["texts"] == 2 and two["interval"][0] < two["bits_per_byte"] < two["interval"][1]
    assert bits_per_byte(model, []) == {}


def test_texts_are_read_up_to_the_limit_and_must_say_something(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", " ", "three", "four")))
    recipe = EvaluationRecipe(suites=(), outside_text=str(file), outside_text_limit=3)
    assert read_texts(recipe, {}) == ["one", "three"]
    assert read_texts(EvaluationRecipe(suites=()), {}) == []
    file.write_text('{"words": "one"}\n')
    with pytest.raises(DataError, match=r"row 0 .*`text`.* words"):
        read_texts(recipe, {})
    file.write_text('{"text": " "}\n')
    with pytest.raises(DataError, match="no text"):
        read_texts(recipe, {})

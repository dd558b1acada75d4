"""A model of a family that the recipe names is trained further and examined, as the later stages of a recipe do."""

from __future__ import annotations

import json

import pytest
import torch
from tokenizers import Tokenizer

from evaluation.exams.harness import run_suites
from evaluation.exams.items import read_exam
from evaluation.exams.local_model import LocalModel
from tests.outside import EXAMPLES
from tests.training.posttrain import tiny
from tests.training.posttrain.conftest import SFT
from training.data.exams.settings import BenchmarkRecipe
from training.pretrain.models import export
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.shape import ExpertLayers, ModelConfig

SHAPE = {"width": 32, "layers": 2, "heads": 2, "kv_heads": 2, "mlp_width": 64, "max_length": 128}
FAMILIES = {
    "qwen2": {"family": "qwen2"},
    "olmo2": {"family": "olmo2", "qk_norm": True},
    "deepseek_v3": {
        "family": "deepseek_v3",
        "experts": ExpertLayers(count=8, active=2, width=16, shared=1, first_layer=1, balancing="bias"),
        "parts": {"deepseek_v3": {"key_value_rank": 12, "plain_width": 8, "value_width": 16, "groups": 2}},
    },
    "olmo3": {"family": "olmo3", "qk_norm": True, "window": 16, "window_pattern": ("window", "full")},
    "granite": {"family": "granite", "parts": {"granite": {"from": "granite:family"}}},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_base_model_of_a_named_family_is_trained_further_and_examined(chain, tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(EXAMPLES)
    tokenizer, folder = tiny.write_tokenizer(tmp_path / "tokenizer"), tmp_path / "base_model" / "model"
    size = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size()
    model = Decoder(ModelConfig(vocab_size=size, **SHAPE, **FAMILIES[name]))
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(0))
    export.write_model(model, folder, tokenizer=tokenizer, eos_id=0)
    inputs = (tiny.commit(tmp_path, "base_model"), tiny.made(chain, "instruction_data"))
    record = tiny.run("sft", tmp_path / "sft_model", {"sft": {**SFT, "epochs": 1}}, inputs)
    made = tmp_path / "sft_model" / "model"
    assert json.loads((made / "config.json").read_text())["model_type"] == name
    assert record["metrics"], record
    asked = ((f"q{n}", f"Which colour has {'the dog that jumps over ' * n}{n}?") for n in range(4))
    choices = ["red", "blue, or brown as bread"]
    items = [{"id": item, "question": question, "choices": choices, "gold": 0} for item, question in asked]
    suite = BenchmarkRecipe(name="q", uri=tiny.write_rows(tmp_path / "q.jsonl", items), kind="multiple_choice")
    exam = [(suite, read_exam(suite, {}).items)]
    (result,) = run_suites(LocalModel(made, batch_size=4), exam, has_template=False)
    (alone,) = run_suites(
        LocalModel(made, batch_size=1), exam, has_template=False
    )  # no question is read for two choices
    assert result.n == 4
    for both, one in zip(result.samples, alone.samples, strict=True):
        assert both["log_likelihoods"] == pytest.approx(one["log_likelihoods"], abs=1e-4)

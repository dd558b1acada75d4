"""Folders of models that keep more of a text than keys and values, or whose class transformers does not have."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from evaluation.exams.harness import NoneFits, fitting
from evaluation.exams.items import ExamItem
from evaluation.exams.local_model import LocalModel
from evaluation.exams.one_model import check_class
from tests.training.posttrain.tiny import write_tokenizer
from training.contract.job import DataError
from training.data.exams.settings import BenchmarkRecipe

TEXTS = ("The quick brown fox jumps over the lazy dog.", "What is 1 and 2? It is 3.")
COMMON = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # so that no two tokens are nearly equally likely
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
QWEN3_NEXT = {
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MODELS = {
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "FalconH1": {"head_dim": 8, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    "Qwen3Next": QWEN3_NEXT,
    "Mamba": {"state_size": 4},
}


def folder_of(tmp_path, name):
    """A folder of a random model of a family, with a tokenizer."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**COMMON, **MODELS[name])
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
    return write_tokenizer(tmp_path / name, TEXTS, vocabulary=400)


@pytest.mark.parametrize("name", MODELS)
def test_a_state_that_choices_cannot_share_gives_lm_eval_s_numbers(tmp_path, name):
    folder = folder_of(tmp_path, name)
    asked = ("The quick brown fox jumps over", "What is", "The lazy dog over the fox; what is 1 and 2, and is it?")
    choices = [Instance("loglikelihood", {}, (one, end), 0) for one in asked for end in (" the lazy dog", " 3", " is")]
    until = {"until": ["\n\n\n"], "max_gen_toks": 8, "do_sample": False}
    answers = [Instance("generate_until", {}, (one, until), 0) for one in asked]
    ours, theirs = LocalModel(folder, batch_size=8), HFLM(pretrained=str(folder), device="cpu", batch_size=1)
    (own, own_greedy), (stock, stock_greedy) = (
        zip(*model.loglikelihood(choices, disable_tqdm=True), strict=True) for model in (ours, theirs)
    )
    assert own == pytest.approx(stock, abs=1e-5) and own_greedy == stock_greedy
    if name != "Mamba":
        assert ours.generate_until(answers) == theirs.generate_until(answers, disable_tqdm=True)


def test_a_model_without_such_a_cache_is_asked_for_choices_alone(tmp_path):
    model = LocalModel(folder_of(tmp_path, "Mamba"), batch_size=8)
    item = ExamItem(id="one", question="What is 1 and 2?", answers=("3",), choices=("3", "4"), gold=0)
    kinds = ("generate", "multiple_choice")
    written, chosen = (BenchmarkRecipe(name=kind, kind=kind, uri="items.jsonl") for kind in kinds)
    with pytest.raises(NoneFits, match=r"^generate: mamba keeps no cache by which answers are written$"):
        fitting(model, written, [item], {}, has_template=False)
    assert fitting(model, chosen, [item], {}, has_template=False) == [item]


@pytest.mark.parametrize("kind", ["mine", "t5", None, ["llama"]])
def test_a_class_that_transformers_lacks_is_refused_in_a_sentence(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "auto_map": {"AutoModelForCausalLM": "x.X"}}))
    with pytest.raises(DataError, match=r"model_type .* is no causal language model of transformers 5.*never run"):
        check_class(tmp_path)

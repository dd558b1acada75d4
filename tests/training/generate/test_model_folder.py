"""A model with one scalar output is opened for every family that transformers can sample from."""

from __future__ import annotations

import pytest
import torch

from training.generate.model_folder import open_model

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("name", ["Llama", "Granite"])  # transformers has no GraniteForSequenceClassification
def test_a_reward_model_is_opened_from_a_causal_one_and_comes_back_the_same(name, tmp_path):
    import transformers

    causal = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**SMALL))
    rows = torch.tensor([[3, 4, 5, 0], [6, 7, 8, 9]])
    folder, written = tmp_path / "causal", tmp_path / "reward"
    causal.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    model = open_model(folder, dtype=torch.float32, reward=True, new_head=True)
    scores = model(rows).logits
    assert type(model).__name__ == f"{name}ForSequenceClassification" and scores.shape == (2, 1)
    assert torch.equal(model.model.embed_tokens.weight.cpu(), causal.model.embed_tokens.weight)
    model.save_pretrained(written)
    (written / "tokenizer.json").write_text("{}")
    assert torch.equal(open_model(written, dtype=torch.float32, reward=True)(rows).logits, scores)

"""Sampling with a cache that leaves room gives the tokens of transformers' own cache, and reads equal prompts once."""

from __future__ import annotations

import pytest
import torch

from tests.training.posttrain import tiny
from training.generate.model_folder import open_model
from training.generate.passes.attention import IN_FP32, attending
from training.generate.passes.roomy_cache import ROOM, RoomyLayer, roomy_cache
from training.generate.sampler import continued

PROMPTS = [[5, 6, 7, 8], [9, 10], [5, 6, 7, 8], list(range(20, 50)), [9, 10]]
STEPS = ROOM + 10  # more than one room


def drawn(model, prompts, **options):
    """The likeliest tokens after each prompt, and the logits that they were chosen from."""
    seen = []

    def draw(logits):
        seen.append(logits)
        return logits.argmax(-1)

    with torch.no_grad():
        tokens = continued(model, prompts, STEPS, torch.tensor([400]), draw, fill=1, **options)
    return tokens, torch.stack(seen)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny.write_model(tmp_path_factory.mktemp("base") / "model")
    return open_model(folder, dtype=torch.float32).eval()


def test_the_tokens_are_those_of_transformers_cache(model):
    tokens, logits = drawn(model, PROMPTS)
    widths = []
    hook = model.register_forward_pre_hook(
        lambda _, __, given: widths.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    with attending(model.config, IN_FP32):
        found, theirs = drawn(model, PROMPTS, cache=roomy_cache(model.config))
    hook.remove()
    assert found == tokens
    assert torch.allclose(logits, theirs, atol=1e-5)
    assert widths[0] == (3, 30) and set(widths[1:]) == {(5, 1)}  # three different prompts
    assert model.config._attn_implementation != IN_FP32


def test_a_token_is_added_without_a_copy_until_the_room_is_full():
    layer, places = RoomyLayer(), set()
    for number in range(ROOM):
        keys, values = layer.update(torch.full((2, 3, 1, 4), number), torch.full((2, 3, 1, 4), -number))
        places.add((keys.data_ptr(), values.data_ptr()))
        assert keys[0, 0, :, 0].tolist() == list(range(number + 1))
        assert torch.equal(values, -keys)
    assert len(places) == 1

"""Rotary frequencies against transformers' own functions."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from training.pretrain.models import rotary
from training.pretrain.models.rotary import rotary_frequencies, rotary_table
from training.pretrain.models.shape import RotaryScaling

HEAD, THETA, ORIGINAL = 64, 500_000.0, 512


def theirs(kind: str, *, length: int | None = None, **parameters):
    config = LlamaConfig(
        hidden_size=4 * HEAD,
        num_attention_heads=4,
        max_position_embeddings=ORIGINAL,
        rope_parameters={"rope_type": kind, "rope_theta": THETA, **parameters},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), length)


CASES = {
    "linear": (RotaryScaling(kind="linear", factor=4.0), {"factor": 4.0}),
    "yarn": (
        RotaryScaling(kind="yarn", factor=8.0, original_length=ORIGINAL),
        {"factor": 8.0, "original_max_position_embeddings": ORIGINAL},
    ),
    "yarn with other bounds": (
        RotaryScaling(kind="yarn", factor=3.0, original_length=ORIGINAL, beta_fast=16.0, beta_slow=2.0),
        {"factor": 3.0, "original_max_position_embeddings": ORIGINAL, "beta_fast": 16.0, "beta_slow": 2.0},
    ),
    "llama3": (
        RotaryScaling(kind="llama3", factor=8.0, original_length=ORIGINAL),
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_stretched_frequencies_equal_those_of_transformers(name):
    scaling, parameters = CASES[name]
    expected, expected_factor = theirs(scaling.kind, **parameters)
    plain, _ = rotary_frequencies(head_width=HEAD, theta=THETA)
    ours, factor = rotary_frequencies(head_width=HEAD, theta=THETA, scaling=scaling)
    assert torch.allclose(ours, expected, rtol=1e-6, atol=0) and factor == pytest.approx(expected_factor)
    assert not torch.allclose(ours, plain)


def test_ntk_is_what_transformers_dynamic_form_comes_to_at_the_stretched_length():
    # With a factor of 1 the dynamic form raises the base by the ratio of the present length to the first one.
    expected, _ = theirs("dynamic", length=4 * ORIGINAL, factor=1.0)
    ours, factor = rotary_frequencies(head_width=HEAD, theta=THETA, scaling=RotaryScaling(kind="ntk", factor=4.0))
    assert torch.allclose(ours, expected, rtol=1e-6, atol=0) and factor == 1.0
    plain, _ = rotary_frequencies(head_width=HEAD, theta=THETA)
    assert ours[0] == plain[0] and ours[-1].item() == pytest.approx(plain[-1].item() / 4)


def test_the_tables_carry_the_factor_of_attention():
    positions, frequencies = torch.arange(5), torch.tensor([1.0, 0.1])
    cosine, sine = rotary_table(positions, frequencies, 1.5)
    assert cosine[0].tolist() == [1.5, 1.5] and sine[1, 0].item() == pytest.approx(1.5 * 0.8414710)


def test_the_form_for_a_gpu_turns_as_the_one_for_a_cpu():
    x = torch.randn(2, 3, 1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table = tuple(
        part.double() for part in rotary_table(torch.arange(5), *rotary_frequencies(head_width=8, theta=100.0))
    )
    assert torch.allclose(rotary._turned_by_halves(x, *table), rotary._turned_on_cpu(x, *table), rtol=1e-12)

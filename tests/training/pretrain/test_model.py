"""The decoder against published counts, reference outputs, and itself with documents apart."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from training.pretrain.attention import DocumentMask, attend, document_mask, grouped_attention, one_document
from training.pretrain.loss import next_token_loss, token_losses
from training.pretrain.loss_mask import IGNORED
from training.pretrain.model import Decoder, ModelConfig, initialise, rotary_table, rotate, unit_rms
from training.records import RecipeError

SMALL = ModelConfig(vocab_size=50, width=32, layers=2, heads=4, kv_heads=2, mlp_width=48, max_length=256, qk_norm=True)


def decoder(config: ModelConfig = SMALL, *, seed: int = 0) -> Decoder:
    model = Decoder(config)
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(seed))
    return model


def llama_3(**sizes: int) -> ModelConfig:
    return ModelConfig(vocab_size=128_256, kv_heads=8, max_length=8192, rope_theta=500_000.0, tied=False, **sizes)


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (llama_3(width=4096, layers=32, heads=32, mlp_width=14_336), 8_030_261_248),
        (llama_3(width=8192, layers=80, heads=64, mlp_width=28_672), 70_553_706_496),
    ],
)
def test_llama_3_shapes_have_their_published_parameter_counts(config, published):
    assert config.parameter_count == published


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_count_is_what_the_model_holds(qk_norm, tied):
    config = ModelConfig(
        vocab_size=50, width=32, layers=2, heads=4, kv_heads=1, mlp_width=48, max_length=8, qk_norm=qk_norm, tied=tied
    )
    assert config.parameter_count == sum(parameter.numel() for parameter in Decoder(config).parameters())


def test_a_shape_that_does_not_divide_is_refused():
    with pytest.raises(RecipeError, match="heads=4 is not a multiple of kv_heads=3"):
        ModelConfig(vocab_size=50, width=32, layers=2, heads=4, kv_heads=3, mlp_width=48, max_length=8)


@pytest.mark.parametrize("cuts", [(5, 12), (1, 2, 3, 100), ()])
def test_packed_documents_equal_the_documents_apart(cuts):
    model, tokens = decoder(), torch.randint(50, (1, 150), generator=torch.Generator().manual_seed(1))
    documents = torch.zeros(1, 150, dtype=torch.long)
    for cut in cuts:
        documents[:, cut:] += 1
    packed = model.logits(tokens, document_mask(documents, dtype=torch.float32))
    apart = [
        model.logits(part, one_document(part, dtype=torch.float32))
        for part in tokens.tensor_split(torch.tensor(cuts, dtype=torch.long), dim=1)
    ]
    assert torch.allclose(packed, torch.cat(apart, dim=1), atol=1e-5)


def test_gradients_of_packed_documents_equal_those_of_the_documents_apart():
    tokens = torch.randint(50, (2, 100), generator=torch.Generator().manual_seed(1))
    documents = torch.zeros(2, 100, dtype=torch.long)
    documents[:, 40:] = 1
    weight = torch.randn(2, 100, 50, generator=torch.Generator().manual_seed(2))
    packed, apart = decoder(), decoder()
    (packed.logits(tokens, document_mask(documents, dtype=torch.float32)) * weight).sum().backward()
    for part, part_weight in ((tokens[:, :40], weight[:, :40]), (tokens[:, 40:], weight[:, 40:])):
        (apart.logits(part, one_document(part, dtype=torch.float32)) * part_weight).sum().backward()
    for one, other in zip(packed.parameters(), apart.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_both_forms_of_attention_agree_forward_and_backward():
    generator = torch.Generator().manual_seed(0)
    heads = [torch.randn(2, 2, size, 130, 8, generator=generator) for size in (3, 1)]
    documents = (torch.rand(2, 130, generator=generator) < 0.05).cumsum(1)
    blocks = document_mask(documents, dtype=torch.float32)
    index = torch.arange(130)
    visible = (documents[:, :, None] == documents[:, None, :]) & (index[:, None] >= index)
    full = DocumentMask(documents=documents, positions=blocks.positions, visible=visible[:, None])
    weight = torch.randn(2, 2, 2, 130, 8, generator=generator)
    results = []
    for mask in (blocks, full):
        given = [part.clone().requires_grad_() for part in heads]
        mixed = attend(*given, mask)
        results.append((mixed, *torch.autograd.grad((mixed * weight).sum(), given)))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_hand_written_gradients_pass_the_numerical_check():
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    table = tuple(part.double() for part in rotary_table(torch.arange(3), head_width=8, theta=100.0))
    assert torch.autograd.gradcheck(lambda x: unit_rms(x, 1e-5), x)
    assert torch.autograd.gradcheck(lambda x: rotate(x, *table), x)


def test_positions_restart_with_each_document():
    mask = document_mask(torch.tensor([[0, 0, 0, 1, 1, 2]]), dtype=torch.float32)
    assert mask.positions.tolist() == [[0, 1, 2, 0, 1, 0]]


def test_chunked_loss_and_its_gradients_equal_the_plain_ones():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2500, 8, generator=generator, requires_grad=True)
    head = torch.randn(20, 8, generator=generator, requires_grad=True)
    targets = torch.randint(20, (2500,), generator=generator)
    targets[::7] = IGNORED
    plain = torch.nn.functional.cross_entropy(hidden @ head.t(), targets, reduction="sum", ignore_index=IGNORED) / 100
    expected = torch.autograd.grad(plain, (hidden, head))
    ours = next_token_loss(hidden, head, targets, scale=0.01)
    assert torch.allclose(ours, plain)
    for one, other in zip(torch.autograd.grad(ours, (hidden, head)), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert torch.allclose(token_losses(hidden, head, targets).sum() / 100, plain)


def test_a_model_with_zero_outputs_starts_as_its_embedding():
    model = Decoder(SMALL)
    initialise(model, zero_outputs=True, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(10)[None]
    embedded = torch.nn.functional.rms_norm(model.embedding[tokens], (32,), eps=1e-5)
    assert torch.equal(model(tokens, one_document(tokens, dtype=torch.float32)), embedded)


def test_bf16_stays_near_fp32():
    model, tokens = decoder(), torch.randint(50, (2, 64), generator=torch.Generator().manual_seed(1))
    exact = model.logits(tokens, one_document(tokens, dtype=torch.float32))
    rough = model.logits(tokens, one_document(tokens, dtype=torch.bfloat16), dtype=torch.bfloat16)
    assert (exact - rough.float()).abs().max() < 0.02


# Reference outputs of PyTorch code: see the README of the data folder.


def reference(name: str) -> torch.Tensor:
    if "PEDIGREE_DATA" not in os.environ:
        pytest.skip("PEDIGREE_DATA is not set")
    return torch.from_numpy(
        np.load(Path(os.environ["PEDIGREE_DATA"], "oracles", "nn_snapshots", f"{name}.npz"))["array"]
    )


def seeded(seed: int, *shape: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(*shape)


@pytest.mark.data
def test_rotary_positions_equal_the_reference():
    expected = reference("test_rope")
    x = seeded(4, 4, 12, 64)
    # The reference pairs neighbours (0, 1), (2, 3), …; this model pairs i with i + 32. A permutation of columns joins
    # them.
    apart = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
    turned = rotate(apart, *rotary_table(torch.arange(12), head_width=64, theta=10_000.0))
    ours = torch.stack((turned[..., :32], turned[..., 32:]), dim=-1).flatten(-2)
    assert torch.allclose(ours, expected, atol=1e-6)


@pytest.mark.data
@pytest.mark.parametrize("name", ["test_scaled_dot_product_attention", "test_4d_scaled_dot_product_attention"])
def test_attention_equals_the_reference(name):
    expected = reference(name)
    query, key, value = seeded(1, 4, 12, 64), seeded(2, 4, 16, 64), seeded(3, 4, 16, 64)
    visible = seeded(5, 4, 12, 16) > 0.5
    mixed = grouped_attention(query[:, None, None], key[:, None, None], value[:, None, None], visible[:, None])
    assert torch.allclose(mixed.view(expected.shape), expected, atol=1e-6)

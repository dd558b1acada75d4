"""The decoder against published counts, reference outputs, and itself with documents apart."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from training.pretrain.models.attention import Visibility, attend, document_mask, grouped_attention, one_document
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.layers import feed_forward, unit_rms
from training.pretrain.models.rotary import rotary_frequencies, rotary_table, rotate
from training.pretrain.models.shape import ExpertLayers, ModelConfig

SMALL = ModelConfig(vocab_size=50, width=32, layers=2, heads=4, kv_heads=2, mlp_width=48, max_length=256, qk_norm=True)


def decoder(config: ModelConfig = SMALL, *, seed: int = 0) -> Decoder:
    model = Decoder(config)
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(seed))
    return model


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
    full = Visibility(visible=visible[:, None])
    weight = torch.randn(2, 2, 2, 130, 8, generator=generator)
    results = []
    for mask in (blocks.full, full):
        given = [part.clone().requires_grad_() for part in heads]
        mixed = attend(*given, mask)
        results.append((mixed, *torch.autograd.grad((mixed * weight).sum(), given)))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def visible_by_hand(documents: list[int], *, window: int, prefix: list[bool]) -> list[list[int]]:
    """For each position the positions it sees, one comparison at a time."""
    count = len(documents)
    return [
        [
            j
            for j in range(count)
            if documents[i] == documents[j] and (prefix[j] or (j <= i and (not window or i - j < window)))
        ]
        for i in range(count)
    ]


@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("marked", [(), (0, 1, 5), range(9)])
def test_a_mask_shows_what_the_definition_says(window, marked):
    documents, prefix = [0, 0, 0, 1, 1, 1, 1, 1, 2], [place in marked for place in range(9)]
    given = torch.tensor([prefix]) if marked else None
    mask = document_mask(torch.tensor([documents]), dtype=torch.float32, window=window, prefix=given)
    (block,), (bias,) = mask.visibility(windowed=True).blocks, mask.visibility(windowed=True).bias
    shown = [[block.first + j for j in range(len(row)) if row[j] == 0] for row in bias[0, 0].tolist()]
    assert shown == visible_by_hand(documents, window=window, prefix=prefix)


@pytest.mark.parametrize(("window", "has_prefix"), [(70, False), (5, False), (70, True), (0, True)])
def test_blocks_of_windows_and_prefixes_equal_the_whole_square(window, has_prefix):
    generator = torch.Generator().manual_seed(0)
    heads = [torch.randn(2, 2, size, 200, 8, generator=generator) for size in (3, 1)]
    documents = (torch.rand(2, 200, generator=generator) < 0.02).cumsum(1)
    prefix = torch.rand(2, 200, generator=generator) < 0.3 if has_prefix else None
    blocks = document_mask(documents, dtype=torch.float32, window=window, prefix=prefix).visibility(windowed=True)
    square = [
        [[j in row for j in range(200)] for row in visible_by_hand(row.tolist(), window=window, prefix=marks)]
        for row, marks in zip(documents, prefix.tolist() if has_prefix else [[False] * 200] * 2, strict=True)
    ]
    whole = Visibility(visible=torch.tensor(square)[:, None])
    weight = torch.randn(2, 2, 2, 200, 8, generator=generator)
    results = []
    for seen in (blocks, whole):
        given = [part.clone().requires_grad_() for part in heads]
        mixed = attend(*given, seen)
        results.append((mixed, *torch.autograd.grad((mixed * weight).sum(), given)))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    if window == 5:
        assert [block.last - block.first for block in blocks.blocks] == [64, 68, 68, 12]


def test_a_windowed_layer_forgets_what_lies_before_its_window():
    config = dataclasses.replace(SMALL, layers=1, window=4, window_pattern=("window",))
    model, tokens = decoder(config), torch.arange(20)[None]
    changed = tokens.clone()
    changed[0, 10] = 49
    one, other = (model.logits(t, one_document(t, dtype=torch.float32, window=4)) for t in (tokens, changed))
    differs = (one - other).abs().amax(dim=-1)[0] > 0
    assert differs.nonzero().flatten().tolist() == [10, 11, 12, 13]


def test_squared_relu_by_hand():
    unit, up, down = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [-1.0, 0.0]]), torch.tensor([[2.0, 5.0]])
    # up gives 3 and -1; squares of the positive parts are 9 and 0.
    assert feed_forward(unit, gate=None, up=up, down=down).tolist() == [[18.0]]


def test_hand_written_gradients_pass_the_numerical_check():
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    table = tuple(
        part.double() for part in rotary_table(torch.arange(3), *rotary_frequencies(head_width=8, theta=100.0))
    )
    assert torch.autograd.gradcheck(lambda x: unit_rms(x, 1e-5), x)
    assert torch.autograd.gradcheck(lambda x: rotate(x, *table), x)


def test_positions_restart_with_each_document():
    mask = document_mask(torch.tensor([[0, 0, 0, 1, 1, 2]]), dtype=torch.float32)
    assert mask.positions.tolist() == [[0, 1, 2, 0, 1, 0]]


def test_a_model_with_zero_outputs_starts_as_its_embedding():
    model = Decoder(SMALL)
    initialise(model, zero_outputs=True, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(10)[None]
    embedded = torch.nn.functional.rms_norm(model.embedding[tokens], (32,), eps=1e-5)
    assert torch.equal(model(tokens, one_document(tokens, dtype=torch.float32)).states, embedded)


def test_bf16_stays_near_fp32():
    model, tokens = decoder(), torch.randint(50, (2, 64), generator=torch.Generator().manual_seed(1))
    exact = model.logits(tokens, one_document(tokens, dtype=torch.float32))
    rough = model.logits(tokens, one_document(tokens, dtype=torch.bfloat16), dtype=torch.bfloat16)
    assert (exact - rough.float()).abs().max() < 0.02


@pytest.mark.parametrize("name", ["dense", "windows", "experts"])
def test_gradients_are_the_same_bits_whatever_is_made_again(name):
    shape = {
        "dense": SMALL,
        "windows": dataclasses.replace(SMALL, window=9, window_pattern=("window", "full"), activation="relu2"),
        "experts": dataclasses.replace(SMALL, experts=ExpertLayers(count=4, active=2, width=16, shared=1)),
    }[name]
    tokens = torch.randint(50, (2, 70), generator=torch.Generator().manual_seed(1))
    mask = document_mask(torch.arange(70)[None].repeat(2, 1) // 30, dtype=torch.bfloat16, window=shape.window)
    results, kept = [], []
    for kind in ("none", "selective", "full"):
        model = decoder(shape)
        model.set_recompute(kind)
        sizes: list[int] = []
        note = functools.partial(_noted, sizes)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            hidden = model(tokens, mask, dtype=torch.bfloat16)
        (hidden.states.float().square().sum() + hidden.balance).backward()
        results.append([hidden.states, hidden.loads, *(parameter.grad for parameter in model.parameters())])
        kept.append(sum(sizes))
    assert kept[0] > kept[1] > kept[2]
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def _noted(sizes: list[int], tensor: torch.Tensor) -> torch.Tensor:
    sizes.append(tensor.numel())
    return tensor


# Reference outputs of PyTorch code: see the README of the data folder.


def reference(name: str) -> torch.Tensor:
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
    turned = rotate(apart, *rotary_table(torch.arange(12), *rotary_frequencies(head_width=64, theta=10_000.0)))
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

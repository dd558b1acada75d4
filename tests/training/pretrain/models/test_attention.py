"""Attention as a GPU computes it, by flex_attention, run without a kernel on the CPU: the same as its own form."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention import varlen

from tests.training.pretrain import tiny
from tests.training.pretrain.models.test_decoder import SMALL, decoder
from tests.training.pretrain.test_training import run_steps, trainer_of
from training.contract.records import RecipeError
from training.pretrain.models import attention
from training.pretrain.models.attention import attend, attention_kind, document_mask, one_document
from training.pretrain.models.collectives import both_ends
from training.pretrain.stages import pretrain as stage

LENGTH = 300  # two blocks of 128 and a part of one


@pytest.fixture
def no_kernel(monkeypatch):
    """flex_attention as plain tensor operations, with the gradients that torch refuses to make on a CPU."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)


def drawn(seed=0, *, rows=2, length=LENGTH, share=0.02):
    """Documents of random lengths, and marks at random, none, or all."""
    generator = torch.Generator().manual_seed(seed)
    documents = (torch.rand(rows, length, generator=generator) < share).cumsum(1)
    marks = {
        "causal": None,
        "scattered": torch.rand(rows, length, generator=generator) < 0.3,
        "starts": torch.arange(length).expand(rows, -1) % 97 < 60,
        "both directions": torch.ones(rows, length, dtype=torch.bool),
    }
    return documents, marks


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("kind", ["causal", "scattered", "starts", "both directions"])
def test_values_and_gradients_equal_those_of_the_cpus_own_form(no_kernel, kind, window):
    documents, marks = drawn()
    assert_like_blocks("flex", documents, window=window, prefix=marks[kind])


def assert_like_blocks(how, documents, **told):
    """Values and gradients of a form of attention are those of the CPU's own."""
    generator = torch.Generator().manual_seed(1)
    heads = [torch.randn(2, 2, size, LENGTH, 16, generator=generator) for size in (4, 1)]
    weight = torch.randn(2, 2, 3, LENGTH, 16, generator=generator)
    results = []
    for kind in (how, "blocks"):
        mask = document_mask(documents, dtype=torch.float32, kind=kind, **told)
        given = [part.clone().requires_grad_() for part in heads]
        mixed = attend(*given, mask.visibility(windowed=True))
        results.append((mixed, *torch.autograd.grad((mixed * weight).sum(), given)))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def stand_in(query, key, value, at, at_key, most, most_key, *, window_size, enable_gqa=False):
    """`varlen_attn` by torch's own attention, one document after the other."""
    assert at is at_key and most == most_key and at.dtype == torch.int32
    parts = []
    for start, stop in itertools.pairwise(at.tolist()):
        index = torch.arange(stop - start)
        seen = index[None] <= index[:, None]
        if window_size[0] >= 0:
            seen &= index[None] >= index[:, None] - window_size[0]
        heads = (part[start:stop].transpose(0, 1)[None] for part in (query, key, value))
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=seen, enable_gqa=enable_gqa)
        parts.append(mixed[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("window", [0, 40])
def test_documents_put_end_to_end_equal_the_cpus_own_form(monkeypatch, window):
    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    documents, _ = drawn()
    most = attention.documents_within(documents.numpy())
    assert_like_blocks("varlen", documents, window=window, most=most)
    starts = document_mask(documents, dtype=torch.float32, kind="varlen", most=most).full.starts
    assert most in (16, 32) and len(starts.at) == most + 1


def test_kernels_that_cannot_be_used_are_refused():
    right = {
        "name": "varlen",
        "device": torch.device("cuda"),
        "dtype": torch.bfloat16,
        "is_plain": True,
        "is_cut": False,
        "is_grouped": True,
    }
    attention.check_varlen(**right)
    for wrong, said in (
        ({"device": torch.device("cpu")}, "bf16 on CUDA devices, here is torch.bfloat16 on cpu; auto is right"),
        ({"dtype": torch.float32}, "here is torch.float32"),
        ({"is_plain": False}, "causal objectives"),
        ({"is_cut": True}, "context divides rows; auto is right"),
    ):
        with pytest.raises(RecipeError, match=said):
            attention.check_varlen(**right | wrong)
    with pytest.raises(RecipeError, match="FlashAttention 3 is not installed"):
        attention.activate_flash_3()


def test_a_torch_whose_kernel_has_no_grouped_queries_is_refused_for_them_alone(monkeypatch):
    def of_torch_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size=(-1, -1)):
        """The arguments that torch 2.11 has."""

    monkeypatch.setattr(varlen, "varlen_attn", of_torch_2_11)
    here = {"name": "varlen", "device": torch.device("cuda"), "dtype": torch.bfloat16}
    attention.check_varlen(**here, is_plain=True, is_cut=False, is_grouped=False)
    with pytest.raises(RecipeError, match="grouped queries"):
        attention.check_varlen(**here, is_plain=True, is_cut=False, is_grouped=True)


def test_packed_documents_equal_the_documents_apart(no_kernel):
    tokens = torch.randint(50, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    documents = torch.zeros(2, LENGTH, dtype=torch.long)
    documents[:, 140:] = 1
    weight = torch.randn(2, LENGTH, 50, generator=torch.Generator().manual_seed(2))
    shape = dataclasses.replace(SMALL, max_length=LENGTH, window=30, window_pattern=("window", "full"))
    packed, apart = decoder(shape), decoder(shape)
    mask = document_mask(documents, dtype=torch.float32, window=30, kind="flex")
    (packed.logits(tokens, mask) * weight).sum().backward()
    for part, part_weight in ((tokens[:, :140], weight[:, :140]), (tokens[:, 140:], weight[:, 140:])):
        mask = one_document(part, dtype=torch.float32, window=30, kind="flex")
        (apart.logits(part, mask) * part_weight).sum().backward()
    for one, other in zip(packed.parameters(), apart.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-3)


def pairs_of(blocks, *, count, indices):
    """`[B, queries, keys]`, which pairs lie in the blocks named."""
    count, indices = getattr(blocks, count), getattr(blocks, indices)
    chosen = torch.zeros(indices.shape, dtype=torch.bool)
    for place in range(indices.shape[-1]):
        chosen.scatter_(-1, indices[..., place : place + 1].long(), (count > place)[..., None])
    queries, keys = blocks.seq_lengths
    size = attention.FLEX_BLOCK
    return chosen[:, 0].repeat_interleave(size, 1).repeat_interleave(size, 2)[:, :queries, :keys]


def ends_of(length, parts, place):
    return torch.tensor([one for run in both_ends(length, parts, place) for one in run])


# a whole row, a part, and runs at both ends, of which the first ends inside a block or with it
OWN = (None, torch.arange(100, 230), ends_of(512, 3, 1), ends_of(512, 2, 0))


@pytest.mark.parametrize("own", range(len(OWN)))
@pytest.mark.parametrize("window", [0, 3, 200])
@pytest.mark.parametrize("kind", ["causal", "scattered", "starts", "both directions"])
def test_the_rule_is_the_mask_and_the_blocks_leave_nothing_out(kind, window, own):
    own = OWN[own]
    documents, marks = drawn(3, length=385 if own is None else 512, share=0.008)
    told = {"dtype": torch.float32, "window": window, "prefix": marks[kind], "own": own}
    blocks, square = (
        document_mask(documents, **told, kind=how).visibility(windowed=True) for how in ("flex", "masked")
    )
    seen, blocks = square.visible[:, 0], blocks.flex
    rows, queries, keys = torch.meshgrid(*(torch.arange(size) for size in seen.shape), indexing="ij")
    assert torch.equal(blocks.mask_mod(rows, None, queries, keys), seen)
    asked = pairs_of(blocks, count="kv_num_blocks", indices="kv_indices")
    whole = pairs_of(blocks, count="full_kv_num_blocks", indices="full_kv_indices")
    assert not (asked & whole).any() and not (seen & ~asked & ~whole).any() and not (whole & ~seen).any()
    size = attention.FLEX_BLOCK
    jumps = [] if own is None else [at for at, step in enumerate(own.diff().tolist(), 1) if step > 1]
    if kind == "causal" and all(at % size == 0 for at in jumps):  # no block is computed for nothing
        tiles = torch.nn.functional.pad(seen.float(), (0, -seen.shape[2] % size, 0, -seen.shape[1] % size))
        assert torch.equal(blocks.to_dense()[:, 0].bool(), torch.nn.functional.max_pool2d(tiles, size).bool())


def test_queries_of_a_part_of_the_row_give_that_part(no_kernel):
    generator = torch.Generator().manual_seed(1)
    heads = [torch.randn(2, 2, size, LENGTH, 16, generator=generator) for size in (2, 1)]
    documents, _ = drawn()
    whole = attend(*heads, document_mask(documents, dtype=torch.float32).full)
    for own in (torch.arange(150), torch.arange(150, 300), ends_of(300, 3, 1)):
        mask = document_mask(documents, dtype=torch.float32, own=own, kind="flex")
        query, key, value = heads[0][:, :, :1, own], heads[0][:, :, 1:], heads[1]
        mixed = attention.flex_grouped_attention(query, key, value, mask.full.flex)
        assert torch.allclose(mixed, whole[:, :, :, own], atol=1e-5)
        assert torch.equal(mask.positions, document_mask(documents, dtype=torch.float32).positions[:, own])


# while it traces, torch hides warnings about what it does itself; here they would be errors before that
@pytest.mark.filterwarnings("ignore")
def test_every_batch_runs_through_the_graph_of_the_first(no_kernel):
    from torch._dynamo.testing import CompileCounterWithBackend

    shape = dataclasses.replace(SMALL, layers=1, max_length=LENGTH, window=30, window_pattern=("window",))
    compiled, plain, counter = decoder(shape), decoder(shape), CompileCounterWithBackend("eager")
    compiled.set_recompute("selective")
    for block in compiled.blocks:
        block.compile(backend=counter, fullgraph=True)
    for seed in range(3):
        tokens = torch.randint(50, (2, LENGTH), generator=torch.Generator().manual_seed(seed))
        documents, _ = drawn(seed)
        one, other = (
            model(tokens, document_mask(documents, dtype=torch.float32, window=30, kind=kind)).states
            for model, kind in ((compiled, "flex"), (plain, "blocks"))
        )
        assert torch.allclose(one, other, atol=1e-4)
        assert counter.frame_count == shape.layers


def test_a_step_of_training_is_that_of_the_cpus_own_form(no_kernel, tmp_path):
    chain = tiny.TinyChain(tmp_path)
    own, other = (trainer_of(chain, precision="fp32") for _ in range(2))
    assert own.attention == "blocks"
    other.attention = "flex"
    assert run_steps(other, 2) == pytest.approx(run_steps(own, 2), rel=1e-5)
    assert [stage._notes(one, (), 0)["attention"] for one in (own, other)] == ["blocks", "flex"]


def test_a_row_that_is_one_document_needs_no_mask():
    heads = [torch.randn(2, 2, size, 70, 16, generator=torch.Generator().manual_seed(1)) for size in (3, 1)]
    tokens = torch.zeros(2, 70, dtype=torch.long)
    plain, blocks = (one_document(tokens, dtype=torch.float32, kind=kind) for kind in ("causal", "blocks"))
    assert plain.full.visible is None and torch.equal(plain.positions, blocks.positions)
    assert torch.allclose(attend(*heads, plain.full), attend(*heads, blocks.full), atol=1e-5)


def test_each_device_gets_what_it_has(monkeypatch):
    cpu, gpu, other = (torch.device(kind) for kind in ("cpu", "cuda", "mps"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert [attention_kind(cpu, head_width=64), attention_kind(cpu, head_width=64, is_cut=True)] == ["blocks", "masked"]
    assert [attention_kind(gpu, head_width=64), attention_kind(gpu, head_width=64, is_cut=True)] == ["flex", "flex"]
    assert [attention_kind(gpu, head_width=8), attention_kind(other, head_width=64)] == ["masked", "masked"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert attention_kind(gpu, head_width=64) == "masked"

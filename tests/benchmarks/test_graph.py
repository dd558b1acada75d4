"""The account of a compiled step: kernels by the stated rule, and bytes and operations that a hand can add up."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks import graph
from benchmarks.gpu import TINY

ROWS, LENGTH = 2, 32
TOKENS, SHAPE = ROWS * LENGTH, TINY.shape


@pytest.fixture(scope="module")
def step() -> graph.Step:
    return graph.step_of(SHAPE, rows=ROWS, length=LENGTH)


def names_and_bytes(function, *given):
    traced = make_fx(function)(*given).graph
    return [([graph._name(node) for node in kernel], graph._bytes_of(kernel)) for kernel in graph.kernels(traced)]


def test_what_no_product_separates_is_one_kernel():
    def function(x, weight):
        z = ((x * 2).relu() + 1) @ weight
        return z, z.exp().sum(-1)

    found = names_and_bytes(function, torch.ones(8, 4), torch.ones(4, 16))
    assert [sorted(names) for names, _ in found] == [["add", "mul", "relu"], ["mm"], ["exp", "sum"]]
    # x and its successor; these, the weight and the product; the product and its sums, in fp32.
    assert [moved for _, moved in found] == [4 * 64, 4 * (32 + 64 + 128), 4 * (128 + 8)]


def test_a_sum_over_tokens_ends_a_kernel_and_what_is_not_read_again_is_not_written():
    found = names_and_bytes(lambda x: (x * 2).sum(0) + 1, torch.ones(8, 4))
    assert [names for names, _ in found] == [["mul", "sum"], ["add"]]
    assert [moved for _, moved in found] == [4 * (32 + 4), 4 * (4 + 4)]


def test_a_view_is_no_kernel_and_half_of_a_tensor_half_the_bytes():
    found = names_and_bytes(lambda x: x.t()[:2].relu(), torch.ones(8, 4))
    assert found == [(["relu"], 4 * (16 + 16))]


def test_a_layers_products_are_those_of_its_matrices(step):
    D, A, M = SHAPE.width, SHAPE.attention_width, SHAPE.mlp_width
    sides = [(3 * A, D), (D, A), (M, D), (M, D), (D, M)]
    # Forward, and for the gradients of what goes in and of the weight.
    assert step.layer.products == 3 * len(sides) and step.layer.attention == 2
    assert step.layer.product_flops == sum(3 * 2 * TOKENS * outputs * inputs for outputs, inputs in sides)
    moved = (2 * 3 * (TOKENS * (outputs + inputs) + outputs * inputs) for outputs, inputs in sides)
    assert step.layer.product_bytes == sum(moved)


def test_attention_moves_its_heads_once_each_way(step):
    heads, lines = 2 * TOKENS * SHAPE.attention_width, 4 * TOKENS * SHAPE.heads
    # Queries, keys, values and what is mixed; back these, two gradients of them all and that of what was mixed.
    assert step.layer.attention_bytes == (4 * heads + lines) + (4 * heads + lines + 4 * heads)


def test_a_compiled_loss_is_a_kernel_a_chunk_that_reads_and_writes_the_logits():
    apart, joined = (graph.around(SHAPE, rows=ROWS, length=LENGTH, compiled=compiled) for compiled in (False, True))
    assert apart.product_flops == joined.product_flops and apart.products == joined.products
    assert joined.fused <= apart.fused - 20 and joined.fused_bytes < apart.fused_bytes
    (kernel,) = graph.kernels(graph.loss_graph(SHAPE))
    logits = 2 * 1024 * SHAPE.vocab_size
    assert 2 * logits <= graph._bytes_of(kernel) <= 2 * logits + 16 * 1024


def test_a_step_is_its_layers_and_what_is_around_them(step):
    assert 10 <= step.layer.fused <= 24  # norms, rotation, the gate and the residual sums, and casts of weights
    assert step.whole.kernels == SHAPE.layers * step.layer.kernels + step.around.kernels + step.update.kernels
    assert step.update.fused_bytes == 40 * SHAPE.parameter_count and step.update.products == 0
    # The head: logits, and the gradients of states and of itself.
    assert step.around.product_flops == 3 * 2 * TOKENS * SHAPE.vocab_size * SHAPE.width
    assert all(line.startswith("|") for line in graph.lines_of(step))


def test_the_loss_with_a_teacher_is_one_kernel_that_reads_both_models_logits():
    apart, joined = (graph.of_a_teachers_loss(SHAPE, compiled=compiled) for compiled in (False, True))
    assert joined.fused == 1 < 20 < apart.fused
    logits = 2 * 1024 * SHAPE.vocab_size
    assert 3 * logits <= joined.fused_bytes <= 3 * logits + 16 * 1024 < apart.fused_bytes / 20

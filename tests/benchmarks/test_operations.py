"""The account of a step by operations."""

from __future__ import annotations

import torch

from benchmarks import operations
from benchmarks.speed import SHAPES


def test_products_of_a_step_are_six_operations_for_each_weight_and_token():
    trainer, watching = operations.own_trainer("tiny", rows=2, length=50), operations.Watching()
    with watching:
        trainer.run_step()
    products = sum(spent.operations for (name, _), spent in watching.found.items() if name == "mm")
    assert products == 6 * SHAPES["tiny"].matrix_parameters * 100


def test_an_operation_is_charged_with_what_it_reads_and_writes():
    watching, numbers = operations.Watching(), torch.ones(10, 3)
    with watching:
        numbers + 1
        numbers.mul_(2)
        torch.empty(10, 3).copy_(numbers)
        numbers.view(3, 10)
        torch.baddbmm(torch.ones(2, 4, 5), torch.ones(2, 4, 3), torch.ones(2, 3, 5))
    spent = {name: one for (name, _), one in watching.found.items()}
    assert [spent[name].bytes for name in ("add", "mul_", "copy_", "view")] == [240, 240, 240, 0]
    assert spent["baddbmm"].operations == 2 * 2 * 4 * 3 * 5


def test_the_account_puts_bounds_beside_what_was_spent():
    rates = operations.Rates(flops=[1e9], bytes=[1e9])
    found = {
        ("mm", ""): operations.Spent(calls=4, seconds=0.4, operations=2e8),
        ("silu", ""): operations.Spent(calls=2, seconds=0.02, bytes=4e6),
    }
    lines = operations.account(found, rates, step=0.25, steps=2).splitlines()
    assert "| products of weights | 2 | 200 | 100 |" in lines and "| activation | 1 | 10 | 2 |" in lines

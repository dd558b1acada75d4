"""The number format of matrix products, on a processor that has bf16 and on one that does not."""

from __future__ import annotations

import pytest
import torch

from training.contract.identity import numerics
from training.contract.process import precision
from training.pretrain.optim.optimizers.muon import orthogonalize

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(params=[True, False], ids=["lacks bf16", "has bf16"])
def lacks(request, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: not request.param)
    return request.param


def test_bf16_is_computed_in_fp32_where_the_processor_has_no_fast_products(lacks):
    assert precision.dtype_here("bf16", CPU) == (torch.float32 if lacks else torch.bfloat16)
    assert precision.replaced_here("bf16", CPU) == (precision.INSTEAD if lacks else "")


def test_gpus_and_other_precisions_are_as_the_recipe_says(lacks):
    assert precision.dtype_here("bf16", GPU) == torch.bfloat16
    assert precision.dtype_here("fp32", CPU) == torch.float32
    assert precision.dtype_here("fp8", CPU) == torch.bfloat16
    assert precision.replaced_here("fp32", CPU) == precision.replaced_here("fp8", CPU) == ""


def test_the_numerics_class_says_so(lacks):
    assert ("bf16" in numerics._precision()) == lacks


def test_muon_iterates_in_the_same_format(lacks):
    assert orthogonalize(torch.eye(4)[None]).dtype == (torch.float32 if lacks else torch.bfloat16)

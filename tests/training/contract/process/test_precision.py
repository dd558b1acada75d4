"""The number format of matrix products, on a processor that has bf16 and on one that does not."""

from __future__ import annotations

import pytest
import torch

from training.contract.identity import numerics
from training.contract.process import precision
from training.pretrain.optim.optimizers.muon import orthogonalize

CPU, GPU = torch.device("cpu"), torch.device("cuda")


OTHERS = dict.fromkeys(precision.INSTRUCTIONS, False)
PROCESSORS = {
    "AVX2": (False, {"architecture": "x86_64", **OTHERS}),
    "AVX-512 alone": (True, {"architecture": "x86_64", **OTHERS}),  # where oneDNN converts every number
    "AVX-512 with bf16": (True, {"architecture": "x86_64", **OTHERS, "avx512_bf16": True}),
    "AMX": (True, {"architecture": "x86_64", **OTHERS, "amx_bf16": True}),
    "Arm": (False, {"architecture": "aarch64"}),
    "Arm with bf16": (True, {"architecture": "aarch64"}),
}


@pytest.fixture(params=PROCESSORS)
def lacks(request, monkeypatch):
    is_supported, has = PROCESSORS[request.param]
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: is_supported)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    return request.param in ("AVX2", "AVX-512 alone", "Arm")


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

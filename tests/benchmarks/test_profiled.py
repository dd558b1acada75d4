"""Kernels by kind, and the share of a step without any."""

from __future__ import annotations

import pytest

from benchmarks import profiled
from benchmarks.gpu import TINY
from benchmarks.trainers import Task


def test_a_kernel_has_the_kind_of_its_name():
    assert profiled.kind_of("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT") == "products"
    assert profiled.kind_of("triton_tem_fused_flex_attention_backward_permute_view_8") == "attention"
    assert profiled.kind_of("multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>") == "optimizer"
    assert profiled.kind_of("Memcpy HtoD (Pinned -> Device)") == "copies"
    assert profiled.kind_of("triton_poi_fused_mul_silu_10") == profiled.OTHERS


def test_time_in_which_two_kernels_run_counts_once():
    assert profiled.busy([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.0)]) == 4.0
    assert profiled.busy([]) == 0.0


def test_a_step_is_divided_among_all_kernels_that_ran():
    task = Task(trainer="own", shape=TINY.shape, rows=2, length=32, threads=1)
    found = profiled.kernels_of(task, warm=1, steps=2)
    assert sum(found["kinds"].values()) == pytest.approx(1) and found["kinds"]["products"] > 0
    assert 0 < found["idle"] < 1 and found["kernels_a_step"] > 10
    assert found["kernels"][0]["share"] >= found["kernels"][-1]["share"]

from __future__ import annotations

import pytest

from evaluation.stages import STAGES as EVALUATION_STAGES
from training.contract.identity.numerics import BY_MKL, described, merged, use_threads
from training.contract.run_settings import RunSettings
from training.stages import STAGES as TRAINING_STAGES

STAGES = {**TRAINING_STAGES, **EVALUATION_STAGES}


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_names_its_numerics_class_if_and_only_if_torch_decides_its_bytes(name):
    assert STAGES[name].by_a_model == ("torch" in STAGES[name].libraries)


def test_what_changed_between_two_attempts_is_the_list_of_its_values():
    one, other = {"threads": 1, "degrees": {}}, {"threads": 2, "degrees": {}}
    assert merged([one, other, one]) == {"threads": [1, 2], "degrees": {}}
    assert merged([one, one]) == one


CPU = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: {model}
model name\t: Intel(R) Xeon(R) Processor
cache size\t: {cache} KB
flags\t\t: fpu avx2 avx512f avx512_vnni {flags}
power management:

processor\t: 1
"""


def test_processors_of_one_name_are_told_apart():
    named = {
        described(CPU.format(model=model, cache=cache, flags=flags))
        for model, cache, flags in ((207, 266240, ""), (143, 266240, ""), (207, 107520, ""), (207, 266240, "amx_bf16"))
    }
    assert len(named) == 4 and "Intel(R) Xeon(R) Processor 6-207 266240 KB avx512-vnni" in named
    assert described("") == described("processor\t: 0\nFeatures\t: fp asimd\n") == ""


def test_each_function_of_mkl_is_called_by_one_thread_before_any_work():
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    called = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(
                (func.overloadpacket.__name__, *((one.dtype, one.numel()) for one in args if type(one) is torch.Tensor))
            )
            return func(*args, **(kwargs or {}))

    with Calls():
        use_threads(RunSettings())
    for dtype in (torch.float32, torch.float64):
        assert {name for name, *given in called if given == [(dtype, 1)]} >= set(BY_MKL)

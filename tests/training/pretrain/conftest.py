"""One thread for tiny tensors: two of them spend their time waiting for each other on a busy machine."""

from __future__ import annotations

import pytest
import torch

from training.contract.process import precision


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Give the module one thread, and the old number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def compile_counter():
    """A backend of torch.compile that counts what it compiles; not for vector instructions, which it would try out."""
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch._inductor import config

    with config.patch({"cpp.vec_isa_ok": False}):
        yield CompileCounterWithBackend("inductor")


@pytest.fixture
def bf16(monkeypatch):
    """Compute bf16 in bf16, as a processor with fast products in bf16 does, at whatever speed this one has."""
    monkeypatch.setattr(precision, "lacks_bf16", lambda device: False)

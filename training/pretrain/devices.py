"""Memory, peak and links of GPUs, by the makers' data sheets. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from training.pretrain.models.account import PEAK_TERAFLOPS
from training.records import RecipeError, no_such


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A kind of GPU: memory in bytes, peaks of dense bf16 and of fp32 in TFLOP/s, and bytes per second.

    The bytes are those read from memory, and those sent within a node. The peak of fp32 is that without TF32, which
    torch does not use for products unless it is told to.
    """

    name: str
    memory_bytes: int
    teraflops: float
    fp32_teraflops: float
    memory_bytes_per_second: float
    link_bytes_per_second: float


def _device(
    name: str, memory_gb: float, link_gb_per_second: float, fp32_teraflops: float, memory_gb_per_second: float
) -> Device:
    return Device(
        name=name,
        memory_bytes=round(memory_gb * 1e9),
        teraflops=PEAK_TERAFLOPS[name],
        fp32_teraflops=fp32_teraflops,
        memory_bytes_per_second=memory_gb_per_second * 1e9,
        link_bytes_per_second=link_gb_per_second * 1e9,
    )


# NVIDIA's data sheets of A100 (80 GB, SXM), L40S, H100 (SXM) and H200 (SXM); for the B200 that of the DGX B200 (an
# eighth of 64 TB/s) and, for fp32, the brief on the Blackwell architecture. Links: half of the sum of both directions
# that the data sheets give; the L40S has PCIe 4 only.
DEVICES = {
    one.name: one
    for one in (
        _device("A100", 80, 300, 19.5, 2039),
        _device("L40S", 48, 32, 91.6, 864),
        _device("H100", 80, 450, 67, 3350),
        _device("H200", 141, 450, 67, 4800),
        _device("B200", 180, 900, 80, 8000),
    )
}


def device_of(name: str) -> Device:
    """Return a kind of GPU by its name. Raise RecipeError for an unknown one."""
    if name not in DEVICES:
        raise RecipeError(no_such(f"gpu={name!r}: not known", name, DEVICES))
    return DEVICES[name]

"""Memory, peak and links of GPUs, by the makers' data sheets. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from training.pretrain.models.account import PEAK_TERAFLOPS
from training.records import RecipeError, no_such


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A kind of GPU: memory in bytes, peak of dense bf16 in TFLOP/s, and bytes per second sent within a node."""

    name: str
    memory_bytes: int
    teraflops: float
    link_bytes_per_second: float


def _device(name: str, memory_gb: float, link_gb_per_second: float) -> Device:
    return Device(
        name=name,
        memory_bytes=round(memory_gb * 1e9),
        teraflops=PEAK_TERAFLOPS[name],
        link_bytes_per_second=link_gb_per_second * 1e9,
    )


# Links: half of the sum of both directions that the data sheets give; the L40S has PCIe 4 only.
DEVICES = {
    one.name: one
    for one in (
        _device("A100", 80, 300),
        _device("L40S", 48, 32),
        _device("H100", 80, 450),
        _device("H200", 141, 450),
        _device("B200", 180, 900),
    )
}


def device_of(name: str) -> Device:
    """Return a kind of GPU by its name. Raise RecipeError for an unknown one."""
    if name not in DEVICES:
        raise RecipeError(no_such(f"gpu={name!r}: not known", name, DEVICES))
    return DEVICES[name]

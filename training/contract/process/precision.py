"""The number format of matrix products on this machine, which may not be able to compute the recipe's."""

from __future__ import annotations

import torch

from training.contract.process.device_kind import kind_of

# The number format of passes for each `precision` of a recipe. With fp8, only the layers' products are in fp8.
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp8": torch.bfloat16}

INSTEAD = (
    "precision: bf16 is computed in fp32 here, because this processor has no fast products in bf16 (they need the"
    " instructions avx512_bf16 or amx_bf16, or Arm's bf16); weights are fp32 in any case"
)

# Of x86 processors; without one, oneDNN calls bf16 supported wherever there is AVX-512, and converts every number.
INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def lacks_bf16(device: torch.device) -> bool:
    """Whether torch has no fast matrix product in bf16 for this device.

    torch then multiplies number by number: with AVX2 alone, bf16 took 13 times as long as fp32, and with AVX-512 five
    times (docs/log/numerics.md).
    """
    if kind_of(device) != "cpu":
        return False
    if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return True
    has = torch.cpu.get_capabilities()
    return has["architecture"] == "x86_64" and not any(has[name] for name in INSTRUCTIONS)


def replaced_here(precision: str, device: torch.device) -> str:
    """Return why products of the recipe's `precision` are computed in fp32 on this device, or "" if they are not."""
    return INSTEAD if precision == "bf16" and lacks_bf16(device) else ""


def dtype_here(precision: str, device: torch.device) -> torch.dtype:
    """Return the number format of passes on this device."""
    return torch.float32 if replaced_here(precision, device) else DTYPES[precision]

"""Matrix products of the layers in fp8 by torchao. Whether they are possible and faster says `fp8_checks`.

Each tensor has one scale ("tensorwise"), computed anew for every product: the form whose scaling costs least. nanochat
measured it at 1.17 times the speed of its bf16 on eight H100, and one scale for each row at 0.90 times. Activations and
weights are e4m3, gradients e5m2 (arXiv 2209.05433). The stored weights stay fp32; torchao gets their bf16 copies.

torch is imported only when a product is made, because the checks read this module without it.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from training.contract.records import RecipeError

if TYPE_CHECKING:
    import torch

MULTIPLE = 16  # what both sides of an fp8 product must be multiples of
LABEL = "pretrain.precision=fp8"


def require_torchao() -> None:
    """Raise RecipeError if torchao is not installed."""
    if importlib.util.find_spec("torchao") is None:
        raise RecipeError(f"{LABEL}: torchao is not installed; pip install 'pedigree[fp8]', or use bf16")


class Fp8Product:
    """A `layers.linear` whose product is in fp8, forward and backward; without gradients it computes in bf16.

    Held-out figures and samples are therefore those of the model as it is exported. With `emulated`, numbers are cast
    to fp8 and back and multiplied in fp32, which any device can do, slowly: for tests. Raise RecipeError without
    torchao.
    """

    def __init__(self, *, emulated: bool) -> None:
        from torch import nn

        require_torchao()
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = replace(Float8LinearConfig.from_recipe_name("tensorwise"), emulate=emulated)
        # torchao converts an `nn.Linear` inside a module; this has no data, and its product is called with all weights.
        holder = nn.Sequential(nn.Linear(MULTIPLE, MULTIPLE, bias=False, device="meta"))
        self._layer: Any = next(convert_to_float8_training(holder, config=config).children())

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, gain: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product of the layer."""
        import torch

        from training.pretrain.models.layers import linear

        if not torch.is_grad_enabled():
            return linear(x, weight, gain)
        ready = (weight if gain is None else weight * gain).to(x.dtype)
        return torch.func.functional_call(self._layer, {"weight": ready}, (x,))

    @property
    def formats(self) -> dict[str, str]:
        """The number format and the scaling of each factor, as torchao's layer has them."""
        casts = {
            name: getattr(self._layer.config, f"cast_config_{name}") for name in ("input", "weight", "grad_output")
        }
        return {
            name: f"{str(cast.target_dtype).removeprefix('torch.')}, {cast.scaling_granularity.value}"
            for name, cast in casts.items()
        }

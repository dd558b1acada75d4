"""How a mesh divides each weight: its shape in a layer, and how many numbers a process holds. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from training.pretrain.degrees import OF_A_TENSOR, OF_AN_EXPERT, TENSOR_CUTS, WHOLE, Degrees, shard_axis
from training.pretrain.models.account import parameter_shapes
from training.pretrain.models.shape import ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """One weight as the first process of a mesh has it.

    shape: of the whole weight; in_layer: of what the process's layer multiplies by, which `shard` divides further.
    held: how many numbers the process holds between passes.
    gathered: how many numbers FSDP gathers for the layer, with what it pads; without `shard` it has them already.
    rearranged: how many of them it writes a second time, into another order than that in which they come.
    sums: process axes along which others hold the same part.
    """

    name: str
    shape: tuple[int, ...]
    in_layer: tuple[int, ...]
    held: int
    gathered: int
    rearranged: int
    sums: tuple[str, ...]

    @property
    def unit(self) -> str:
        """The layer of the weight; "" if it is outside of layers."""
        return ".".join(self.name.split(".")[:2]) if self.name.startswith("blocks.") else ""


@lru_cache(maxsize=1024)
def divided(config: ModelConfig, degrees: Degrees) -> tuple[Division, ...]:
    """Return the division of each weight of which the first process has a part."""
    return tuple(_divided(config, degrees))


def _divided(config: ModelConfig, degrees: Degrees) -> Iterator[Division]:
    layers = _first_layers(config, degrees)
    for name, shape in parameter_shapes(config):
        unit, part = name.split(".")[:2], ".".join(name.split(".")[2:])
        if unit[0] == "blocks" and int(unit[1]) not in layers:
            continue
        if unit[0] in ("norm", "head") and degrees.pipeline > 1:
            continue
        in_layer, sums = list(shape), WHOLE
        if len(shape) == 3:
            in_layer[0] //= degrees.expert
            sums = OF_AN_EXPERT if degrees.expert > 1 else WHOLE
        elif len(shape) == 2 and degrees.tensor > 1 and (axis := _cut_axis(config, unit, part)) is not None:
            in_layer[axis] //= degrees.tensor
            sums = OF_A_TENSOR
        axis = shard_axis(in_layer, degrees.shard)
        held = prod(in_layer) // in_layer[axis] * -(-in_layer[axis] // degrees.shard)
        yield Division(
            name=name,
            shape=shape,
            in_layer=tuple(in_layer),
            held=held,
            gathered=held * degrees.shard,
            rearranged=held * degrees.shard if axis else 0,
            sums=sums,
        )


def _first_layers(config: ModelConfig, degrees: Degrees) -> set[int]:
    """Return the layers of the first process of a pipeline; all without one."""
    size = config.layers // (degrees.pipeline * degrees.pipeline_chunks)
    starts = (chunk * degrees.pipeline * size for chunk in range(degrees.pipeline_chunks))
    return {layer for start in starts for layer in range(start, start + size)}


def _cut_axis(config: ModelConfig, unit: list[str], part: str) -> int | None:
    """Return the axis along which `tensor` cuts a matrix; None if it does not."""
    module, _, name = part.partition(".")
    if unit[0] != "blocks" or (module == "mlp" and config.has_experts(int(unit[1]))):
        return None
    return TENSOR_CUTS.get(module, {}).get(name)

"""Predict the memory of a post-training whose model is divided among processes on GPUs. Imports no torch.

The arithmetic describes FSDP as transformers sets it up, TRL's fused head, and layers that are computed twice. `python
-m benchmarks.fake_tuning` compares it with the stages' own code, without a device. Nothing here was compared with a
GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from training.pretrain.memory import Needed
from training.pretrain.models.account import FP32, parameter_shapes
from training.pretrain.models.shape import ModelConfig

BF16 = 2
HEAD_TILE = 32_768  # entries of the vocabulary whose logits exist at once (TRL's fused head)
HEAD_ROWS = 2_048  # … and positions of which they exist
# Numbers of a layer that is computed again and goes backward, for each position: times the width of the MLP, and of the
# model. Counted in benchmarks.fake_tuning; the residual stream and the norms are in fp32.
MLP_STATES, STATES, FP32_STATES = 7, 9, 4


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTuning:
    """What is tuned or scored: the model's shape, the processes that share it, and what a pass reads.

    positions: of all rows of a pass. longest: of its longest row. recomputes: whether layers are computed twice.
    """

    shape: ModelConfig
    shard: int
    positions: int
    longest: int
    recomputes: bool = True

    @property
    def share(self) -> int:
        """Bytes of a process's weights, which are in fp32."""
        return FP32 * self.shape.parameter_count // self.shard

    @property
    def head(self) -> int:
        """Bytes of the whole head, and so of the embedding."""
        return FP32 * self.shape.vocab_size * self.shape.width

    @property
    def residual(self) -> int:
        """Bytes of the residual stream, which autocast leaves in fp32."""
        return FP32 * self.positions * self.shape.width

    @property
    def block(self) -> int:
        """Bytes of a layer's weights, which FSDP gathers in fp32."""
        sizes: dict[str, int] = {}
        for name, sides in parameter_shapes(self.shape):
            if name.startswith("blocks."):
                unit = ".".join(name.split(".")[:2])
                sizes[unit] = sizes.get(unit, 0) + prod(sides)
        return FP32 * max(sizes.values())


def memory_of_steps(planned: PlannedTuning) -> Needed:
    """Return the bytes that a process needs in the steps of SFT or DPO, by purpose: at the head, or in a layer.

    Unless layers are computed twice it is a lower bound: autograd keeps their weights in bf16 for the backward pass,
    which are counted, and their states, which are not.
    """
    shape = planned.shape
    trained = {
        "weights": planned.share,
        "gradients": planned.share,
        "optimizer": 2 * planned.share,
        "states of all layers": planned.residual * (shape.layers + 1),
    }
    if not planned.recomputes:
        trained["weights of all layers in bf16"] = BF16 * (shape.parameter_count - 2 * planned.head // FP32)
    tile = min(HEAD_TILE, shape.vocab_size)
    head = {
        "gathered weights": 2 * planned.head + planned.block,  # the head with its gradient, and the next layer
        "head and loss": BF16 * tile * (shape.width + min(HEAD_ROWS, planned.positions)) + 3 * planned.residual,
    }
    states = BF16 * (MLP_STATES * shape.mlp_width + STATES * shape.width) + FP32 * FP32_STATES * shape.width
    layer = {
        "gathered weights": planned.head + 2 * planned.block,
        "weights of a layer in bf16": planned.block * BF16 // FP32,
        "states of a layer": planned.positions * states,
    }
    return trained | max(head, layer, key=lambda parts: sum(parts.values()))


def memory_without_steps(planned: PlannedTuning) -> dict[str, Needed]:
    """Return the bytes that a process needs at the other moments: of a tuning, and of scoring by log-likelihoods.

    `answers` are written after prompts of `longest` positions.
    """
    shape = planned.shape
    opened, held = {"weights": planned.share}, {"weights": planned.share, "optimizer": 2 * planned.share}
    scores = opened | {
        "gathered weights": 2 * planned.head + planned.block,  # the message and the head, beside the last layer
        "states": 2 * planned.residual,
    }
    keys = shape.head_widths.keys + shape.head_widths.values
    return {
        "open": opened,
        "loss of a sample": opened
        | {"gathered weights": 2 * planned.head, "logits": FP32 * planned.longest * shape.vocab_size},
        "save": held,
        "export": held | {"whole weight": 2 * planned.head},
        "scores": scores,
        "answers": scores | {"keys and values": FP32 * planned.positions * shape.layers * keys},
    }

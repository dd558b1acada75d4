"""Optimizers by name, one file each; other code uses only the `OPTIMIZER` that each file declares.

The files import torch only when they create or step an optimizer, so that a recipe can be read without torch.
"""

from __future__ import annotations

from training.contract.parts.packages import parts_in
from training.pretrain.optim.optimizer import Optimizer

OPTIMIZERS: dict[str, Optimizer] = {name: part.OPTIMIZER for name, part in parts_in(__name__).items()}

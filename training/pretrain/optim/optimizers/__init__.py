"""Optimizers by name, one file each; its `OPTIMIZER` says all that the rest of the code knows of it.

The files import torch only where they make or step an optimizer, so that a recipe is read without it.
"""

from __future__ import annotations

from training.parts import parts_in
from training.pretrain.optim.optimizer import Optimizer

OPTIMIZERS: dict[str, Optimizer] = {name: part.OPTIMIZER for name, part in parts_in(__name__).items()}

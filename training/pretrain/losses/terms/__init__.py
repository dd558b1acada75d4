"""Losses of a text by name, one file each; other code uses only the `LOSS` that each file declares.

The files import torch only when they compute a loss, so that a recipe can be read without torch.
"""

from __future__ import annotations

from training.contract.parts.packages import parts_in
from training.pretrain.losses.loss import Loss

LOSSES: dict[str, Loss] = {name: part.LOSS for name, part in parts_in(__name__).items()}

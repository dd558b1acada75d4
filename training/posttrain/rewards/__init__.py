"""Rewards by name, one file each; other code uses only the `REWARD` that each file declares. Standard library only."""

from __future__ import annotations

from training.contract.parts.packages import parts_in
from training.posttrain.scoring import Reward

REWARDS: dict[str, Reward] = {name: part.REWARD for name, part in parts_in(__name__).items()}

"""REINFORCE leave-one-out (RLOO, arXiv 2402.14740).

An answer's advantage is its reward minus the mean reward of the other answers to its prompt.
"""

from __future__ import annotations

from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.method import Method
from training.posttrain.align.sampling.sampled import train_on_samples

METHOD = Method(config="RLOOConfig", learns_from="samples")


def train(given: Alignment) -> Trained:
    """Train the SFT model by RLOO on the prompts."""
    return train_on_samples(given, RLOOConfig, RLOOTrainer)

"""Group relative policy optimization (GRPO, arXiv 2402.03300).

An answer's advantage is its reward minus the mean reward of all answers to its prompt, divided by their standard
deviation.
"""

from __future__ import annotations

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.method import Method
from training.posttrain.align.sampling.sampled import train_on_samples

METHOD = Method(config="GRPOConfig", learns_from="samples")


def train(given: Alignment) -> Trained:
    """Train the SFT model by GRPO on the prompts."""
    return train_on_samples(given, GRPOConfig, GRPOTrainer)

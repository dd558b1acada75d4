"""The models that take the exams, and the files in which the scores keep their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.contract.scopes import KEPT_STEPS

MODEL_FOLDER = "model"
CORPUS = "decontaminated_documents"  # the pages that the models were pretrained on
HELD_OUT, OUTSIDE = "held_out", "outside"  # texts that bits per byte are measured on
BITS_FILES = {HELD_OUT: "held_out_bits_per_byte.json", OUTSIDE: "bits_per_byte.json"}
COMPARISONS_FILE = "comparisons.json"
# An adopted model takes the place of the base model in a recipe without a corpus, and a kept step by `sft.from_step`.
NAMES = {
    "adopted_model": "base",
    "base_model": "base",
    KEPT_STEPS: "base",
    "sft_model": "sft",
    "aligned_model": "aligned",
}
MODELS = {"base": "base_model", "sft": "sft_model", "aligned": "aligned_model"}


def sample_file(model: str, suite: str) -> str:
    """Return the path, within the artifact, of a model's kept samples on a suite."""
    return f"samples/{model}_{suite}.jsonl.zst"


def score_of(sample: Mapping[str, Any]) -> float:
    """Return the score of an item by its kept sample: 0 or 1, or from 0 to 1 if an exam of its own harness gave it."""
    return float(sample.get("score", sample["correct"]))

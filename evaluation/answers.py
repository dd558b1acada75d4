"""Which models sit the exams, and where the scores keep the answers of each."""

from __future__ import annotations

MODELS = {"base": "base_model", "sft": "sft_model", "aligned": "aligned_model"}


def sample_file(model: str, suite: str) -> str:
    """Where the kept samples of a model on a suite lie in the artifact."""
    return f"samples/{model}_{suite}.jsonl.zst"

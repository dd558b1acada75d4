"""The models that take the exams, and the files in which the scores keep their answers."""

from __future__ import annotations

MODEL_FOLDER = "model"
CORPUS = "decontaminated_documents"  # the pages that the models were pretrained on
MODELS = {"base": "base_model", "sft": "sft_model", "aligned": "aligned_model"}


def sample_file(model: str, suite: str) -> str:
    """Return the path, within the artifact, of a model's kept samples on a suite."""
    return f"samples/{model}_{suite}.jsonl.zst"

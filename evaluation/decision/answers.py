"""The models that take the exams, and the files in which the scores keep their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.contract.job import InputArtifact, Job
from training.contract.scopes import CHOSEN_MODEL, KEPT_LONG_STEPS, KEPT_STEPS, QUANTIZED, QUANTIZED_MODEL

MODEL_FOLDER = "model"
CORPUS = "decontaminated_documents"  # the pages that the models were pretrained on
HELD_OUT, OUTSIDE = "held_out", "outside"  # texts that bits per byte are measured on
BITS_FILES = {HELD_OUT: "held_out_bits_per_byte.json", OUTSIDE: "bits_per_byte.json"}
COMPARISONS_FILE = "comparisons.json"
FILLING_FILE = "filling.json"  # of base models that answer no exam
# An adopted model takes the place of the base model in a recipe without a corpus, and a kept step by `sft.from_step`.
NAMES = {
    "adopted_model": "base",
    "base_model": "base",
    KEPT_STEPS: "base",
    KEPT_LONG_STEPS: "base",
    "sft_model": "sft",
    "kept_sft_steps": "sft",
    "aligned_model": "aligned",
    "kept_align_steps": "aligned",
    QUANTIZED_MODEL: QUANTIZED,
}
MODELS = {"base": "base_model", "sft": "sft_model", "aligned": "aligned_model"}


def name_of(item: InputArtifact) -> str:
    """Return the name under which a model takes exams; a chosen model has that of the model whose place it takes."""
    return NAMES[item.record()["notes"]["choice"]["instead_of"] if item.asset == CHOSEN_MODEL else item.asset]


def models_among(job: Job) -> dict[str, InputArtifact]:
    """Return the models among a job's inputs by the names under which they take exams, in the order of the chain."""
    return {name_of(item): item for asset in (*NAMES, CHOSEN_MODEL) for item in job.inputs_of(asset)}


def choice_in_words(record: Mapping[str, Any]) -> str:
    """Return on what a model was chosen, as a sentence, given its record; empty for a model that is not chosen."""
    choice = record.get("notes", {}).get("choice")
    if not choice:
        return ""
    rows = {row["name"]: row for row in choice["candidates"]}
    own, suite = rows[choice["name"]], choice["suite"]
    said = f"the last model, chosen on {suite} among {len(rows)} models of its training"
    if against := own.get("against_last"):
        low, high = (100 * end for end in against["interval"])
        said = (
            f"{own['name'].replace('-', ' ')}, chosen on {suite} among {len(rows)} models of its training:"
            f" {100 * own['score']:.1f} % there, {100 * against['difference']:+.1f} points against the last model's"
            f" (95 % interval {low:+.1f} to {high:+.1f})"
        )
    return f"The model is {said}; its score on {suite} is too high on average, because it was chosen by it"


def sample_file(model: str, suite: str) -> str:
    """Return the path, within the artifact, of a model's kept samples on a suite."""
    return f"samples/{model}_{suite}.jsonl.zst"


def score_of(sample: Mapping[str, Any]) -> float:
    """Return the score of an item by its kept sample: 0 or 1, or from 0 to 1 if an exam of its own harness gave it."""
    return float(sample.get("score", sample["correct"]))

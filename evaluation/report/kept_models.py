"""Name the vocabulary and quality models that were kept when pages they had learned from were withdrawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.report.truth_comparison import Record, of_asset

# Each model of the corpus, what it learned from, and an asset that reads both the model and these documents.
LEARNED_FROM = (
    ("quality_models", "extracted_documents", "filtered_documents"),
    ("tokenizer", "decontaminated_documents", "token_shards"),
)


def kept_models(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each kept model that learned from other documents than the ones it was then used on.

    This follows from the inputs in the records alone, so the sentence is true whatever the recipe asks for now.
    """
    found = []
    for model, documents, reader in LEARNED_FROM:
        for _, record in of_asset(records, model):
            learned = _fingerprints(record, documents)
            used: dict[str, str] = {}
            for _, user in of_asset(records, reader):
                used |= _fingerprints(user, documents)
            changed = [part for part in learned if used.get(part, learned[part]) != learned[part]]
            if changed:
                found.append(
                    f"{model} {record['digest'][:12]} was made before pages were withdrawn, and was kept: it learned"
                    f" from {documents} of {', '.join(changed)} as they were then"
                )
    return found


def _fingerprints(record: Mapping[str, Any], asset: str) -> dict[str, str]:
    """Return the fingerprints of the inputs of an asset, by snapshot."""
    return {
        item["partition"].partition("@")[2]: item["fingerprint"] for item in record["inputs"] if item["asset"] == asset
    }

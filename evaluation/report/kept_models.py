"""Sentences on models that a reader must know: one kept though pages were withdrawn, stopped early, or chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.decision.answers import choice_in_words
from evaluation.report.truth_comparison import Record, of_asset
from training.contract.scopes import CHOSEN_MODEL, KEPT_STEPS

# Each model of the corpus, what it learned from, and an asset that reads both the model and these documents.
LEARNED_FROM = (
    ("quality_models", "extracted_documents", "filtered_documents"),
    ("tokenizer", "decontaminated_documents", "token_shards"),
)


def said_of_models(records: Sequence[Record]) -> list[str]:
    """Return all sentences on the models among these artifacts."""
    chosen = (choice_in_words(record) for _, record in of_asset(records, CHOSEN_MODEL))
    return [*kept_models(records), *stops(records), *chosen]


def stops(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each base model whose training ended before its budget was used: when, and by what."""
    found = []
    for _, record in (one for asset in ("base_model", KEPT_STEPS) for one in of_asset(records, asset)):
        said = record.get("notes", {}).get("stopped")
        if said:
            by = f"the right answers of {said['suite']}, a watched exam suite," if "suite" in said else "held-out text"
            seen = f"; {said['suite']} decided about it, and is no exam of its own" if "suite" in said else ""
            found.append(
                f"The training of {record['asset']} ended after step {said['step']:,} of {said['steps']:,}, because"
                f" {by} had been predicted best after step {said['best_step']:,}{seen}"
            )
    return found


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

"""Descriptions of the gates, for people who look at them as asset checks in Dagster."""

from __future__ import annotations

import dagster as dg
from dagster_shared.utils.warnings import disable_dagster_warnings

from assets.partitions import Partitions
from training.stage import Asset

ASKS = {
    "all_bytes": "The vocabulary has a token for each of the 256 bytes, so that any text can be written.",
    "classifier_auc": "On held-out texts the quality classifier tells good pages from others as well as asked.",
    "contamination": "No more of each exam's items than allowed is found in what the model is trained on.",
    "counts_balance": "Every record that came in was kept, dropped or quarantined; none was lost.",
    "dpo_starts_at_ln2": "Before its first step DPO's loss is ln 2: model and reference are the same.",
    "export_equals_trainer": "The exported model answers as the trained one.",
    "fertility": "A token stands for at least as many bytes of held-out text as asked.",
    "held_out_pair_accuracy": "On held-out pairs the reward model prefers the chosen answer as often as asked.",
    "import_equals_transformers": "The adopted model answers here as it does in transformers.",
    "ipo_starts_at_1_over_4_beta_squared": "Before its first step IPO's loss is 1 / (4 beta²).",
    "kept_fraction": "The filter keeps a fraction of the documents within the recipe's limits.",
    "kept_fraction_by_group": "The filter keeps enough of each source and language.",
    "labelled_auc": "The quality classifier agrees with texts that people labelled as well as asked.",
    "loss_falls_with_size_and_tokens": "In the fitted law the loss falls with parameters and with tokens.",
    "loss_finite": "The loss was a finite number at every step.",
    "loss_finite_and_falling": "The loss was a finite number at every step and fell as far as asked.",
    "merged_equals_adapter": "The model with its adapter merged answers as the model beside its adapter.",
    "needles_found": "The long-context model finds as many hidden sentences as asked.",
    "promotion": "Scores, contamination and the comparison with the champion allow the promotion.",
    "round_trip": "Texts are the same after encoding and decoding.",
    "scores_complete": "Every model has answered every item of every suite.",
    "shards_decode": "Shards decode to the documents that they were made of.",
    "shares": "Each source has the share of the tokens that the recipe asks for.",
    "short_context_kept": "The long-context model is not worse than asked on short texts.",
    "survival": "Deduplication keeps enough of each source and language.",
    "template": "The chat template marks the turns as training needs them.",
    "toxicity_auc": "On held-out texts the toxicity classifier is as good as asked.",
}


def checks_of(declared: Asset, partitions: Partitions) -> list[dg.AssetCheckSpec]:
    """Return one blocking check for each gate of an asset; each partition of the asset has its own verdict."""
    # Dagster 1.13 calls partitions of checks a preview; the locked version cannot change under us.
    with disable_dagster_warnings():
        return [
            dg.AssetCheckSpec(
                name,
                asset=declared.name,
                blocking=True,
                description=ASKS.get(name),
                partitions_def=partitions.of(declared),
            )
            for name in declared.stage.gates
        ]

"""Descriptions of the gates, for people who look at them as asset checks in Dagster."""

from __future__ import annotations

import dagster as dg
from dagster_shared.utils.warnings import disable_dagster_warnings

from assets.graph.partitions import Partitions
from training.contract.stage import Asset

ASKS = {
    "all_bytes": "The vocabulary has a token for each of the 256 bytes, so that any text can be written.",
    "classifier_auc": "The quality classifier separates held-out good pages from others as well as the recipe asks.",
    "contamination": "The training data hold no more of each exam's items than the recipe allows.",
    "counts_balance": "Every record that came in was kept, dropped or quarantined; none was lost.",
    "dpo_starts_at_ln2": "Before its first step DPO's loss is ln 2: model and reference are the same.",
    "every_row_is_in": "The index holds as many rows of post-training as its inputs have, whatever became of them.",
    "every_source_gives": "Each source gives rows; one that gives none is told with the settings that fit.",
    "export_equals_trainer": "The exported model gives the same logits as the trained model.",
    "fertility": "On held-out text a token stands for at least as many bytes as the recipe asks.",
    "held_out_pair_accuracy": "On held-out pairs the reward model agrees with the choices as often as the recipe asks.",
    "import_equals_transformers": "The adopted model gives the same logits here as in transformers.",
    "ipo_starts_at_1_over_4_beta_squared": "Before its first step IPO's loss is 1 / (4 beta²).",
    "kept_fraction": "The filter keeps a fraction of the documents within the recipe's limits.",
    "kept_fraction_by_group": "The filter keeps at least the recipe's minimum fraction of each source and language.",
    "labelled_auc": "The quality classifier agrees with labels that people gave to texts as well as the recipe asks.",
    "loss_falls_with_size_and_tokens": "In the fitted law the loss falls with parameters and with tokens.",
    "loss_finite": "The loss was a finite number at every step.",
    "loss_finite_and_falling": "The loss was a finite number at every step and fell as far as the recipe asks.",
    "proxy_up_truth_down": "The trained reward did not rise while the true reward of held-out answers fell.",
    "max_drop": "The quantized model's scores show that it lost at most as much as the recipe allows.",
    "merged_equals_adapter": "Merging the adapter into the weights does not change the model's logits.",
    "needles_found": "In long texts the long-context model finds as many hidden sentences as the recipe asks.",
    "opens_as_written": "The quantized model, opened from its files, has the logits that it had before it was written.",
    "promotion": "Scores, contamination and the comparison with the champion allow the promotion.",
    "round_trip": "Texts are the same after encoding and decoding.",
    "scores_complete": "Every model has answered every item of every suite.",
    "shards_decode": "Shards decode to the documents that they were made of.",
    "shares": "Each source has the share of the tokens that the recipe asks for.",
    "short_context_kept": "On short texts the long-context model is not worse than the recipe allows.",
    "starts_at_known_loss": "Before its first step the method has its known loss: policy and reference are the same.",
    "starts_at_reference": "Before the first step of a loss without known start, policy and reference agree.",
    "suffixes_sorted": "Each suffix array holds every token's position once, and those of a sample are in order.",
    "survival": "Deduplication keeps at least the recipe's minimum fraction of each source and language.",
    "template": "The chat template gives the same tokens and the same trained positions as the training data.",
    "tokens_return": "Texts decoded from token shards are encoded to the same tokens: it is the right tokenizer.",
    "toxicity_auc": "The toxicity classifier separates held-out toxic texts from others as well as the recipe asks.",
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

from pathlib import Path

from evaluation.report.kept_models import kept_models


def record(asset, **inputs):
    items = [{"asset": name, "partition": "toy@one", "fingerprint": value} for name, value in inputs.items()]
    return Path(), {"asset": asset, "partition": "toy", "digest": "d" * 64, "inputs": items}


def test_a_model_that_learned_from_other_documents_than_it_was_used_on_is_named():
    tokenizer, quality = (
        record("tokenizer", decontaminated_documents="1"),
        record("quality_models", extracted_documents="1"),
    )
    shards = record("token_shards", decontaminated_documents="2", tokenizer="t")
    same = record("filtered_documents", extracted_documents="1", quality_models="q")
    (said,) = kept_models([tokenizer, quality, shards, same])
    assert said.startswith("tokenizer dddddddddddd was made before pages were withdrawn") and "of one" in said
    assert kept_models([tokenizer, quality, same]) == []

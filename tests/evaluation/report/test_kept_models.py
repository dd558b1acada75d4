from pathlib import Path

from evaluation.report.kept_models import kept_models, said_of_models, stops


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


def test_a_training_that_ended_early_is_said_with_what_ended_it():
    folder, whole = record("base_model")
    ended = {"best_step": 1200, "step": 1600, "steps": 2000}
    for by, said in (
        ({}, "because held-out text had been"),
        ({"suite": "cloze"}, "because the right answers of cloze,"),
    ):
        notes = {"stopped": ended | by}
        (sentence,) = stops([(folder, whole | {"notes": notes})])
        assert sentence.startswith("The training of base_model ended after step 1,600 of 2,000,") and said in sentence
        assert ("cloze decided about it, and is no exam of its own" in sentence) == ("suite" in by)
    assert stops([(folder, whole | {"notes": {}})]) == []


def test_a_chosen_model_is_said_with_its_suite_and_how_it_differs_from_the_last_one():
    rows = [{"name": "last", "score": 0.5}, {"name": "step-500", "score": 0.75}]
    rows[1]["against_last"] = {"difference": 0.25, "interval": [-0.01, 0.5]}
    choice = {"suite": "cloze", "name": "step-500", "candidates": rows}
    folder, chosen = record("chosen_model")
    (said,) = said_of_models([(folder, chosen | {"notes": {"choice": choice}})])
    assert said == (
        "The model is step 500, chosen on cloze among 2 models of its training: 75.0 % there, +25.0 points against the"
        " last model's (95 % interval -1.0 to +50.0); its score on cloze is too high on average, because it was chosen"
        " by it"
    )
    (said,) = said_of_models([(folder, chosen | {"notes": {"choice": choice | {"name": "last"}}})])
    assert said.startswith("The model is the last model, chosen on cloze among 2 models of its training; its score")

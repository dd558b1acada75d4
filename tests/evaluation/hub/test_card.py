import json

import pytest

from evaluation.hub.card import CONFIG, _shape, lasting
from evaluation.report.scoreboard import scoreboard
from training.contract.artifact import manifest
from training.contract.job import RefusedInput


def board(tmp_path, **measured):
    metrics = {"loss_end": 3.6, "steps": 40.0, **measured}
    record = {"asset": "base_model", "partition": "toy", "recipe": "toy", "metrics": metrics, "gates": [], "counts": {}}
    spent = {"seconds": measured["training_seconds"], "files": [], "cost": {"cpu_seconds": 1.0}}
    return scoreboard([(tmp_path, record | spent)])


def test_the_cards_numbers_are_those_that_another_run_finds_again(tmp_path):
    one = board(tmp_path, tokens_per_second=24350.9, training_seconds=6.7)
    other = board(tmp_path, tokens_per_second=25325.0, training_seconds=6.5)
    assert one != other
    assert lasting(one) == lasting(other)
    assert lasting(one)["pretraining"] == {"loss_end": 3.6, "steps": 40.0}


def test_names_that_a_recipe_gave_stay_whatever_they_end_in(tmp_path):
    made = board(tmp_path, training_seconds=6.7) | {"scores": {"30_seconds": {"base": {"score": 0.5}}}}
    assert lasting(made)["scores"] == {"30_seconds": {"base": {"score": 0.5}}}


def test_the_configuration_is_that_of_the_last_model_and_a_changed_one_is_refused(tmp_path):
    models = {"reward_model": [], "no_model": [(tmp_path, {"files": []})]}
    assert _shape(models) == {}
    for asset, positions in (("base_model", 256), ("long_context_model", 1024)):
        (path := tmp_path / asset / CONFIG).parent.mkdir(parents=True)
        path.write_text(json.dumps({"max_position_embeddings": positions}), "utf-8")
        record = {"asset": asset, "partition": "toy", "files": manifest(tmp_path / asset, [CONFIG])}
        models = {**models, asset: [(tmp_path / asset, record)]}
    assert _shape({**models, "aligned_model": []}) == {"max_position_embeddings": 1024}
    path.write_text("{}", "utf-8")
    with pytest.raises(RefusedInput, match="config"):
        _shape(models)

from evaluation.card import lasting
from evaluation.scoreboard import scoreboard


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

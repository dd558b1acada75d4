"""How often a stage is tried again: real attempts of a real process, struck where the test says."""

from __future__ import annotations

import pytest

from assets.materialize.causes import StageFailed
from assets.materialize.patience import Retries
from resources.compute.local import LocalBackend
from resources.profile import Size
from tests.toys import made_of, toy_task
from training.contract.artifact import SCRATCH_FOLDER, Artifact


def attempts_at(tmp_path, *faults: int, retries: int = 1):
    """What comes of a stage of six ranks that is killed before the given ones, and the number of its attempts."""
    task = toy_task(tmp_path, ranks=6, faults=[(rank, "kill") for rank in faults], size=Size(retries=retries))
    made, said = made_of(task, LocalBackend(poll_seconds=0.02))
    return made, sum(line.startswith("submitted") for line in said), said


def test_progress_between_faults_gives_the_budget_of_retries_back(tmp_path):
    made, attempts, said = attempts_at(tmp_path, 1, 2, 4)
    assert isinstance(made, Artifact), made
    assert attempts == 4 and (made.path / "5.txt").exists()
    assert "ranks: 4; trying again, 0 tries" in said[-2]


@pytest.mark.parametrize(
    ("faults", "retries", "attempts"),
    [((1, 1, 4), 1, 2), ((0, 0, 0, 0), 2, 3), ((1, 3, 3), 1, 3), ((2,), 0, 1)],
    ids=["second without progress", "none at all", "third without progress", "no retry allowed"],
)
def test_a_stage_that_ends_at_the_same_place_stops_after_its_retries(tmp_path, faults, retries, attempts):
    made, tried, _ = attempts_at(tmp_path, *faults, retries=retries)
    assert isinstance(made, StageFailed) and "SIGKILL" in str(made)
    assert tried == attempts


def test_a_later_checkpoint_is_progress_and_one_that_was_reached_before_is_none(tmp_path):
    checkpoints = tmp_path / SCRATCH_FOLDER / "checkpoints"
    (checkpoints / "step-00000010").mkdir(parents=True)
    retries = Retries(1, tmp_path)
    (checkpoints / "step-00000020").mkdir()
    assert retries.take() and " of step 20" in retries.why
    (checkpoints / "step-00000020").rmdir()  # damaged, say, and set aside: the next attempt goes on from 10
    assert not retries.take()
    again = Retries(2, tmp_path)
    assert again.take()
    (checkpoints / "step-00000020").mkdir()
    assert again.take() and again.left == 1

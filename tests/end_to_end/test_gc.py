"""`pedigree gc` on a root that the command line made, with Dagster's and MLflow's stores and a registered version."""

from __future__ import annotations

import shutil
import uuid

from resources.tracking.reports import Tracking
from tests.small_kitchen import made, pedigree


def test_a_whole_run_needs_all_that_it_made_and_leftovers_beside_it_go(first, untouched, tmp_path):
    root = shutil.copytree(untouched, tmp_path / "root")
    told = pedigree("gc", root=root)
    assert told.code == 0 and told.answer["entries"] == [] and told.answer["kept"] > 30
    shutil.rmtree(root / "refs")  # from here on the registered version and the shipped recipes alone
    assert pedigree("gc", root=root, PEDIGREE_RECIPES="").answer["entries"] == []
    shutil.copyfile(root / "mlflow.db", tmp_path / "mlflow.db")
    Tracking("", root).client().delete_registered_model("kitchen-small")
    listed = {entry["asset"] for entry in pedigree("gc", root=root, PEDIGREE_RECIPES="").answer["entries"]}
    assert listed >= {"aligned_model", "model_scores", "promoted_model"} and "token_shards" not in listed
    shutil.copyfile(tmp_path / "mlflow.db", root / "mlflow.db")
    shutil.copytree(untouched / "refs", root / "refs")
    run = next((root / "dagster" / "history" / "runs").glob("*-*.db"))
    orphan = run.with_name(f"{uuid.uuid4()}.db")
    shutil.copyfile(run, orphan)
    told = pedigree("gc", "--yes", root=root)
    assert [entry["kind"] for entry in told.answer["entries"]] == ["run"] and run.exists() and not orphan.exists()
    again = pedigree("run", "kitchen-small", root=root)
    assert again.code == 0 and again.answer["promoted"] and made(again) == set()

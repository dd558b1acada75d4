"""What happens to a folder between the comparison that found nothing in it and the job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from assets.graph.pipeline import Pipeline
from assets.materialize import make as making
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from tests.assets.fabricate import make_one
from training.contract import artifact

WATCH = SimpleNamespace(starts_anew=False, run_id="run", launch="launch", stands_in_the_way=lambda recipe, asset: "")


@pytest.mark.parametrize("was_there", [False, True])
def test_what_another_run_made_since_the_comparison_is_not_set_aside(tmp_path, monkeypatch, was_there):
    comparison = compare(load_recipe("kitchen"), tmp_path)
    cell = replace(comparison.cells["crawl_archives", "kitchen@kitchen-1"], was_there=was_there)
    make_one(comparison, cell)  # by another run
    monkeypatch.setattr(making, "run_job", lambda job, *_: (artifact.find(Path(job.output)), ""))  # as a job does
    folder = artifact.folder_of(tmp_path, *cell.key[:1], cell.fingerprint)
    if was_there:
        with pytest.raises(AttributeError):  # it was to be made again, and no job made it
            making.make(cell, comparison, Pipeline(root=str(tmp_path)), WATCH)
    else:
        assert making.make(cell, comparison, Pipeline(root=str(tmp_path)), WATCH).artifact.path == folder
    assert len(list(folder.parent.glob("*.replaced-*"))) == was_there

"""The champion as a promotion's job is told of it."""

from __future__ import annotations

import pytest

from assets.registry.champion import champion_asked, with_stale_noted
from assets.state.compare import compare
from resources.tracking.registry import Version
from resources.tracking.reports import Tracking


@pytest.mark.parametrize("tags", [{}, {"digest": "d"}, {"digest.model_scores": "s"}])
def test_a_champion_without_its_digests_is_not_looked_for(tmp_path, tags):
    asked = champion_asked([Version(version="3", tags=tags, source="")], tmp_path)
    assert asked["problem"] == "version 3 has no tags with its digest and that of its scores"


@pytest.mark.parametrize("uri", ["https://mlflow.example.org", "sqlite:///{folder}/none.db"])
def test_a_decision_is_as_it_is_where_no_store_is_on_this_machine(kitchen, made, tmp_path, uri):
    comparison = compare(kitchen, made)
    tracking = Tracking(uri.format(folder=tmp_path), made, in_background=False)
    assert with_stale_noted(comparison, tracking) is comparison
    assert list(tmp_path.iterdir()) == []

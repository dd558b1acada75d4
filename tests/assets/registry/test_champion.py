"""The champion as a promotion's job is told of it."""

from __future__ import annotations

import pytest

from assets.registry.champion import champion_asked
from resources.tracking.registry import Version


@pytest.mark.parametrize("tags", [{}, {"digest": "d"}, {"digest.model_scores": "s"}])
def test_a_champion_without_its_digests_is_not_looked_for(tmp_path, tags):
    asked = champion_asked([Version(version="3", tags=tags, source="")], tmp_path)
    assert asked["problem"] == "version 3 has no tags with its digest and that of its scores"

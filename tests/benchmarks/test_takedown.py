"""The benchmark that kills takedowns: does it notice a state that is half of before and half of after?"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from assets.state.tombstones import Entry, Tombstone, append
from benchmarks.takedown import End, copied, digests, half_done, unsound
from tests.assets.fabricate import make_all, make_one

RECIPE = "kitchen-nightly"
FIRST = f"{RECIPE}@kitchen-1"


@pytest.fixture
def place(tmp_path) -> Path:
    """A root with a tombstone that touches the first snapshot, after which everything was made again."""
    make_all(load_recipe(RECIPE), tmp_path / "root")
    entries = (Entry(entry="=example,thebakersregister,", touches=(0,)),)
    crawl = compare(load_recipe(RECIPE), tmp_path / "root").cells["crawl_archives", FIRST].fingerprint
    now = "2026-11-26T00:00:00+00:00"
    append(tmp_path / "root", Tombstone(number=1, time=now, reason="asked", entries=entries, looked_at=(crawl,)))
    return tmp_path / "root"


def test_an_asset_that_is_not_made_yet_is_no_half_state(place, tmp_path):
    undisturbed = copied(place, tmp_path / "undisturbed")
    make_all(load_recipe(RECIPE), undisturbed)
    end = End(digests(undisturbed, RECIPE), 0)
    assert end.cells != digests(place, RECIPE) and half_done(place, RECIPE, end) == []
    assert half_done(undisturbed, RECIPE, end) == [] and unsound(undisturbed) == []


def test_an_asset_that_counts_as_made_and_has_another_content_is_named(place, tmp_path):
    undisturbed = copied(place, tmp_path / "undisturbed")
    make_all(load_recipe(RECIPE), undisturbed)
    end = End(digests(undisturbed, RECIPE), 0)
    comparison = compare(load_recipe(RECIPE), place)
    make_one(comparison, comparison.cells["extracted_documents", FIRST], content="with the withdrawn page")
    (problem,) = half_done(place, RECIPE, end)
    assert f"extracted_documents {FIRST}: made" in problem and "counts as made, not made" in problem


def test_a_file_without_its_bytes_is_named(place):
    folder = next(place.glob("token_shards/*/artifact.json")).parent
    (folder / "data.txt").write_text("cut")
    assert any("data.txt" in line for line in unsound(place))
    shutil.rmtree(folder)
    assert unsound(place) == []

"""The reckoning of a large crawl adds up, and says which artifact is missing."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.reckoning import EMPTY_SLICE_BYTES, FIRST, PIPELINE_SECONDS, STAGES, empty_slices, measured, reckoned
from training import artifact

OPTIONS = argparse.Namespace(files=90_000, terabytes=90.0, nodes=100, cores=32, price=0.04)


@pytest.fixture
def root(tmp_path):
    """A root with records of a recipe of two snapshots: 10 pages and 2 processor seconds in each artifact."""
    for asset in ("crawl_archives", *FIRST, *STAGES):
        for snapshot in ("a", "b"):
            record = {"cost": {"cpu_seconds": 2.0}, "counts": {"kept": 10}, "files": [{"bytes": 500}, {"bytes": 500}]}
            artifact.write_json(tmp_path / asset / f"{asset}-{snapshot}" / "artifact.json", record)
            place = tmp_path / "refs" / asset / f"small@{snapshot}.json"
            artifact.write_json(place, {"fingerprint": f"{asset}-{snapshot}"})
    return tmp_path


def test_hours_and_bytes_are_those_of_the_records_times_the_size(root):
    found = measured(root, "small")
    assert (found.archive_bytes, found.pages, found.signed) == (2000, 20, 20)
    told = reckoned(found, OPTIONS, 3600.0, 7200.0)
    assert told["core-hours: token_shards"] == 4.0
    assert told["core-hours"] == 4 * 4.0 + 2 * PIPELINE_SECONDS
    assert told["hours, all nodes busy"] * 3200 == pytest.approx(told["core-hours"])
    assert told["TB written and kept"] * 1e12 == 7 * 2000 * 3600
    assert told["million documents signed"] * 1e6 == 20 * 3600


def test_a_recipe_without_artifacts_is_named(root):
    with pytest.raises(FileNotFoundError, match=r"no artifact of .+ of the recipe other; `pedigree run"):
        measured(root, "other")


def test_an_empty_slice_has_the_bytes_that_are_reckoned_with():
    assert round(empty_slices(1000)[2]) == EMPTY_SLICE_BYTES

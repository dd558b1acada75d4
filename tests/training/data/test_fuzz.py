"""A small corpus of bad input; `python -m benchmarks.fuzz` runs as much of it as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import fuzz
from training.recipe import ExtractRecipe

# Among the first ten thousand, those in which so many bytes are missing that a block ends with the next one's header.
ENDS_WITH_A_HEADER = (3847, 7222, 7249)


def test_broken_archives_lose_nothing_that_was_left_alone(tmp_path: Path):
    report = fuzz.read_archives([*range(4 * 3 * len(fuzz.MUTATIONS)), *ENDS_WITH_A_HEADER], tmp_path)
    assert report.files == 87 and report.intact > 700
    assert report.lost == {}
    assert report.silent == {}


@pytest.mark.parametrize("settings", fuzz.SETTINGS, ids=lambda settings: settings.extractor)
def test_hostile_pages_end_nobody_and_leave_clean_text(settings: ExtractRecipe):
    report = fuzz.extract_pages(range(110), settings)
    assert report.fates.total() == 110
    assert report.fates["kept"] > 20
    assert (report.failures, report.unclean, report.deaths) == ([], [], 0)

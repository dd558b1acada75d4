"""A small corpus of bad input; `python -m benchmarks.fuzz` runs as much of it as one likes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import fuzz

# Among the first ten thousand, those in which so many bytes are missing that a block ends with the next one's header.
ENDS_WITH_A_HEADER = ()


def test_broken_archives_lose_nothing_that_was_left_alone_and_nothing_broken_passes(tmp_path: Path):
    numbers = [*range(2 * len(fuzz.FORMS) * len(fuzz.MUTATIONS)), *ENDS_WITH_A_HEADER]
    report = fuzz.read_archives(map(fuzz.archive, numbers), tmp_path)
    assert report.files == 84 + len(ENDS_WITH_A_HEADER) and report.intact > 700 and report.touched > 200
    assert (report.lost, report.silent, report.wrong) == ({}, {}, {})
    assert report.quarantined["wrong_digest"] > 5
    assert report.unprovable.total() < 3


@pytest.mark.data
@pytest.mark.parametrize("name", ["dolma/sample-0000.warc.gz", "resiliparse/warcfile.warc.lz4", "warcio/example.warc"])
def test_broken_pieces_of_real_archives_lose_nothing_either(tmp_path: Path, name: str):
    path = Path(os.environ["PEDIGREE_DATA"], "warc", name)
    report = fuzz.read_archives((fuzz.real_archive(path, number) for number in range(14)), tmp_path)
    assert report.intact > 50 and report.touched > 10
    assert (report.lost, report.silent, report.wrong) == ({}, {}, {})


@pytest.mark.parametrize("extractor", fuzz.EXTRACTORS)
def test_hostile_pages_end_nobody_and_leave_clean_text(extractor: str):
    numbers = range(len(fuzz.PAGES), 3 * len(fuzz.PAGES))  # one of those before takes trafilatura ten seconds
    report = fuzz.extract_pages(numbers, fuzz.SETTINGS[extractor])
    assert report.fates.total() == len(numbers)
    assert report.fates["kept"] > 2
    assert (report.failures, report.unclean, report.deaths) == ([], [], 0)
    assert 0 < report.peak_bytes < fuzz.PEAK_BYTES

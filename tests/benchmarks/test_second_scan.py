"""The second scanner finds a text in every kind of file, by itself."""

from __future__ import annotations

import pytest

from benchmarks.second_scan import places, windows
from tests.assets.test_erasing import HARMLESS, KINDS

SECRET = "The aunt of Mr Smith keeps nine silver spoons under the third stair"
NOT_READ = {"suffix array"}  # holds places in a shard, and no text without arithmetic


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - NOT_READ))
def test_a_planted_text_is_found_in_every_kind_of_file(tmp_path, kind):
    path = KINDS[kind](tmp_path, SECRET)
    found, files, size = places(tmp_path, windows(SECRET))
    assert path.relative_to(tmp_path).as_posix() in found and files >= 1 and size >= path.stat().st_size
    (tmp_path / "other").mkdir()
    KINDS[kind](tmp_path / "other", HARMLESS)
    assert places(tmp_path / "other", windows(SECRET))[0] == {}

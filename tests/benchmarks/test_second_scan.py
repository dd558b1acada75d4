"""The second scanner finds a text in every kind of file, by itself."""

from __future__ import annotations

import pytest

from benchmarks.second_scan import files_in, places, windows
from tests.assets.answers.takedown.test_erasing import HARMLESS, KINDS

SECRET = "The aunt of Mr Smith keeps nine silver spoons under the third stair"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_planted_text_is_found_in_every_kind_of_file(tmp_path, kind):
    path = KINDS[kind](tmp_path, SECRET)
    found, files, size = places(files_in(tmp_path), windows(SECRET))
    assert path in found and files >= 1 and size >= path.stat().st_size
    (tmp_path / "other").mkdir()
    KINDS[kind](tmp_path / "other", HARMLESS)
    assert places(files_in(tmp_path / "other"), windows(SECRET))[0] == {}

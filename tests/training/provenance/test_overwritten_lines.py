"""A row or page that is withdrawn loses its text, and every line beside it keeps its bytes."""

from __future__ import annotations

import json

import pytest

from training.contract.job import DataError
from training.data.documents import document_id
from training.provenance.erase import Withdrawn, erase_lines
from training.provenance.rows.erase import erase_row_file
from training.provenance.swap import Swap, overwrite_lines

WRITTEN = [
    rb'{"id": "a", "text": "costs 1.10, and 1.1", "score": 1.10, "warc_file": "f", "warc_offset": 1, "snapshot": "s"}',
    rb'{"warc_offset": 2,"id":"b","warc_file":"f","snapshot":"s","text":"caf\u00e9","n":1e3,"m":1234567890123456789.0}',
    rb'{"id": "c", "text": "gone", "score": 2.50, "warc_file": "f", "warc_offset": 3, "snapshot": "s", "n": [1.0]}',
    rb'{"text": "last, without a line end", "id": "d", "warc_file": "f", "warc_offset": 4, "snapshot": "s", "n": -0.0}',
]
GONE = Withdrawn(ids=frozenset([document_id("s", "f", 3)]))
ERASERS = {
    "rows": lambda folder, swap: erase_row_file(folder, "rows.jsonl", {"c"}.__contains__, swap),
    "pages": lambda folder, swap: erase_lines(folder, "rows.jsonl", GONE, swap),
}


@pytest.mark.parametrize("eraser", ERASERS)
def test_other_lines_keep_their_bytes(tmp_path, eraser):
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(WRITTEN))
    with Swap(takedown=1, note=lambda files, records: None) as swap:
        assert ERASERS[eraser](tmp_path, swap) == 1
        new = swap.now(tmp_path / "rows.jsonl").read_bytes().split(b"\n")
    assert new[:2] == WRITTEN[:2] and new[3:] == WRITTEN[3:]
    assert json.loads(new[2])["text"] == "" and json.loads(new[2])["n"] == []


def test_a_line_that_is_no_json_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(WRITTEN[0] + b"\n{")
    with Swap(takedown=1, note=lambda files, records: None) as swap, pytest.raises(DataError, match="line 2"):
        overwrite_lines(tmp_path, "rows.jsonl", lambda row: row, swap)

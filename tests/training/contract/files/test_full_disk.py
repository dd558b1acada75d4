"""Errors of a full disk, as each library that writes files raises them."""

from __future__ import annotations

import sqlite3
import traceback
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import SafetensorError

from assets.services.root import full_disk
from training.contract.files.full_disk import is_full_disk

SPACE = "No space left on device (os error 28)"


def stream(write):
    """Write to the full device by an open handle: a library that is given its path may put a file in its place."""
    with open("/dev/full", "wb", buffering=0) as opened:
        write(opened)


def database():
    with sqlite3.connect(":memory:") as connection:
        connection.execute("PRAGMA max_page_count = 2")
        connection.execute("CREATE TABLE rows (text)")
        connection.execute("INSERT INTO rows VALUES (?)", ("x" * 100_000,))


def raised(error):
    raise error


WRITES = {
    "numpy": lambda: stream(np.arange(100_000).tofile),
    "python": lambda: stream(lambda opened: opened.write(bytes(9))),
    "pyarrow": lambda: stream(lambda opened: pq.write_table(pa.table({"a": list(range(100_000))}), opened)),
    "sqlite": database,
    # in the libraries' words, because these write by a path and put their file in the place of what lies there
    "safetensors": lambda: raised(SafetensorError(f"Error while serializing: I/O error: {SPACE}")),
    "tokenizers": lambda: raised(Exception(SPACE)),
    "torch": lambda: raised(RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_full_disk_is_recognized_and_said_in_a_sentence(write, tmp_path):
    with pytest.raises(Exception) as found:
        write()
    assert is_full_disk(found.value), repr(found.value)
    said = "".join(traceback.format_exception(found.value))
    assert full_disk(said, tmp_path).startswith(f"disk full under {tmp_path}")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file"),
        RuntimeError("12 requested and 11 written, says a user"),
        ValueError("a page with the words No space left on device"),
        KeyError("database or disk is full"),
        OSError("a row says: Disk quota exceeded"),
        OSError(5, "No space left on device"),
        sqlite3.OperationalError("no such table: disk is full"),
    ],
)
def test_the_words_of_another_error_are_no_full_disk(error):
    assert not is_full_disk(error)


def test_words_in_what_another_process_said_are_known():
    assert full_disk("Traceback\nOSError: [Errno 122] Disk quota exceeded", Path("/"))

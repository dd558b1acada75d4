"""Errors of a full disk, as each library that writes files raises them."""

from __future__ import annotations

import traceback
from pathlib import Path

import numpy as np
import pytest

from assets.disk import full_disk
from training.files.full_disk import is_full_disk

ROWS = np.arange(100_000)


@pytest.mark.parametrize("write", [ROWS.tofile, lambda stream: stream.write(bytes(9))])
def test_a_full_disk_is_recognized_and_said_in_a_sentence(write, tmp_path):
    with open("/dev/full", "wb", buffering=0) as stream, pytest.raises(OSError) as found:
        write(stream)
    assert is_full_disk(found.value)
    said = "".join(traceback.format_exception(found.value))
    assert full_disk(said, tmp_path).startswith(f"disk full under {tmp_path}")


@pytest.mark.parametrize(
    "said",
    [
        "1000000 requested and 131072 written",
        "Error while serializing: I/O error: No space left on device (os error 28)",  # safetensors, tokenizers
        "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534",  # torch
        "[Errno 122] Disk quota exceeded",
        "database or disk is full",
    ],
)
def test_words_of_libraries_that_lose_the_number_are_known(said):
    assert is_full_disk(OSError(said)) and full_disk(f"Traceback\nOSError: {said}", Path("/"))


def test_other_errors_are_no_full_disk():
    assert not is_full_disk(FileNotFoundError(2, "No such file"))
    assert not is_full_disk(RuntimeError("12 requested and 11 written, says a user"))

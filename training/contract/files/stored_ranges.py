"""A file of an artifact that only its root's store has, read in ranges, so that a process brings no more than it uses.

It has what readers of a binary stream need. Nothing is checked: a reader has checksums of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.contract.files.objects import Objects
from training.contract.files.stored_root import is_only_stored, stored_root

END_BYTES = 64 << 10  # brought once, in the first request: a table at the end of a file, or a small file whole


class StoredStream:
    """A stream of an object of this size. Raise FileNotFoundError if the store lacks it."""

    def __init__(self, objects: Objects, key: str, size: int) -> None:
        self._objects, self._key, self._size, self._at = objects, key, size, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte, counted from the begin or the end; return its number."""
        self._at = max(0, offset + (self._size if whence == os.SEEK_END else 0))
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return this many bytes, or those up to the end."""
        begin, end = self._at, self._size if size < 0 else min(self._at + size, self._size)
        self._at = end
        if begin >= (known := max(0, self._size - END_BYTES)):
            return _range(self._objects, self._key, known, self._size)[begin - known : end - known]
        return _range.__wrapped__(self._objects, self._key, begin, end)


@lru_cache(maxsize=256)
def _range(objects: Objects, key: str, begin: int, end: int) -> bytes:
    if (data := objects.get_range(key, begin, end)) is None:
        raise FileNotFoundError(f"{objects.address}/{key}")
    return data


def stored_stream(path: Path, entry: Mapping[str, Any]) -> StoredStream | None:
    """Return the stream of an artifact's file, by its manifest entry, if it is not here and its root's store has it."""
    root = stored_root(path.parent)
    if root is None or not is_only_stored(path, entry):
        return None
    return StoredStream(root.objects, root.key_of_file(path, entry["sha256"]), entry["bytes"])

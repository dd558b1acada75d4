"""Recognize an error that a full disk caused: by its number, or by the class of a library that loses the number."""

from __future__ import annotations

import errno
import re
import sqlite3

_SPACE = r"No space left on device|Disk quota exceeded|\(os error (?:28|122)\)$"
_ARRAY = r"\d+ requested and \d+ written"  # numpy's `tofile` and `save`
_ARCHIVE = r"inline_container\.cc:\d+\] \. unexpected pos"  # torch's `save`
_SAID = re.compile(rf"{_SPACE}|disk is full|is the disk full|^(?:OSError: )?{_ARRAY}$|{_ARCHIVE}", re.MULTILINE)
_OF_LIBRARIES = {  # of an error's class, which must be this very one, the words in which its library tells it
    "builtins.OSError": re.compile(_ARRAY),
    "builtins.RuntimeError": re.compile(rf".*{_ARCHIVE}"),
    "builtins.Exception": re.compile(r".*\(os error (?:28|122)\)$"),  # of tokenizers
    "safetensors._safetensors_rust.SafetensorError": re.compile(r".*\(os error (?:28|122)\)$"),
}


def told_of_full_disk(said: str) -> str:
    """Return the first line that says that a disk is full, of what another process said; empty if no line says so."""
    return next((line.strip() for line in said.splitlines() if _SAID.search(line)), "")


def is_full_disk(error: BaseException) -> bool:
    """Whether a full disk caused an error of this process."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    words = _OF_LIBRARIES.get(f"{type(error).__module__}.{type(error).__qualname__}")
    return words is not None and words.match(str(error)) is not None

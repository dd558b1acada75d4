"""Recognize an error that a full disk caused, in the words of each library that writes files."""

from __future__ import annotations

import errno
import re

_SAID = re.compile(
    r"No space left on device|Disk quota exceeded|disk is full|is the disk full"
    r"|^OSError: \d+ requested and \d+ written$|^\d+ requested and \d+ written$"  # numpy's `tofile` and `save`
    r"|inline_container\.cc:\d+\] \. unexpected pos",  # torch's `save`
    re.MULTILINE,
)


def told_of_full_disk(said: str) -> str:
    """Return the first line that says that a disk is full; empty if no line says so."""
    return next((line.strip() for line in said.splitlines() if _SAID.search(line)), "")


def is_full_disk(error: BaseException) -> bool:
    """Whether a full disk caused an error, which is an OSError with its number only in a part of the libraries."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return bool(told_of_full_disk(str(error)))

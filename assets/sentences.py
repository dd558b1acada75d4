"""One-sentence messages in place of tracebacks.

They stand for errors of the root, its databases and MLflow, and for interruptions.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from pathlib import Path

from assets.disk import full_disk
from training.job import DataError
from training.secrets import masked

GO_ON = "what is finished is used when you run again"
INTERRUPTED = f"interrupted by Ctrl-C; {GO_ON}"

# Messages of database drivers about a root's databases, and what to do. Any library may pass them on.
DATABASE_FAULTS = {
    "database is locked": "another process holds it locked; end that process, or try again when it is done",
    "readonly database": "it cannot be written; look at the rights of its folder",
    "unable to open database file": "it cannot be opened; look at the rights of its folder",
    "file is not a database": "it is damaged; move the folder `dagster` away, artifacts do not need it",
    "database disk image is malformed": "it is damaged; move the folder `dagster` away, artifacts do not need it",
}


def check_root(root: Path) -> Path:
    """Return `root`. Raises DataError if it is not a folder and cannot become one."""
    place = root.absolute()
    try:
        there = next(one for one in (place, *place.parents) if os.path.lexists(one))
        if os.path.isdir(there):
            return root
    except OSError as error:  # too long, or a loop of links
        raise DataError(f"--root {root}: {error.strerror}; give a folder") from None
    raise DataError(f"--root {root}: {there} is no folder; give a folder, or a path where one can be made")


def make_writable(root: Path) -> None:
    """Create the root if needed. Raises DataError if nothing can be written in it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        if full_disk(str(error), root):
            return  # reported later by the run, with its consequences
        raise DataError(
            f"--root {root}: nothing can be written there ({error.strerror}); give another folder, or mend its rights"
        ) from None


def sentence_of(error: BaseException, root: Path | None = None) -> str:
    """One sentence about an error that a person can fix; empty for any other error."""
    from resources.tracking.errors import TrackingError

    said = masked("".join(traceback.format_exception(error)))
    place = root or Path.cwd()
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if full := full_disk(said, place):
        return full
    if isinstance(error, TrackingError):
        return masked(str(error))
    for words, what in DATABASE_FAULTS.items():
        if words in said:
            return f"a database under {place / 'dagster'}: {what}"
    if isinstance(error, OSError) and error.filename is not None:
        return masked(f"{error.filename}: {error.strerror}")
    return ""

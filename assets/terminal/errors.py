"""One-sentence messages in place of tracebacks.

They stand for errors of the root, its databases and MLflow, and for interruptions.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from assets.services.root import full_disk
from training.contract.secrets import masked

GO_ON = "what is finished is used when you run again"
EMPTY_IT = "the folder may hold a part of the files; empty it before you give the command again"
# What Ctrl-C leaves of a command, by the command's name. A command that is not here has written nothing before its end.
LEAVES = {
    "run": GO_ON,
    "demo": GO_ON,
    "chat": "the conversation is not kept",
    "evaluate": "no score is kept",
    "contamination": "no finding is kept",
    "export": f"{EMPTY_IT}; to an object store, the same command goes on",
    "attest": EMPTY_IT,
    "promote": "`pedigree report` shows which model is champion",
    "rollback": "`pedigree report` shows which model is champion",
    "verify": "give the command again to check the rest",
    "takedown": "a withdrawal that was confirmed is in force; give the command again to finish it",
    "gc": "what is needed is still there; give the command again to remove the rest",
}

# Messages of database drivers about a root's databases, and what to do. Any library may pass them on.
DATABASE_FAULTS = {
    "database is locked": "another process holds it locked; end that process, or try again when it is done",
    "readonly database": "it cannot be written; look at the rights of its folder",
    "unable to open database file": "it cannot be opened; look at the rights of its folder",
    "file is not a database": "it is damaged; move the folder `dagster` away, artifacts do not need it",
    "database disk image is malformed": "it is damaged; move the folder `dagster` away, artifacts do not need it",
}


def interrupted(command: str) -> str:
    """Return the sentence about a command that Ctrl-C ended, with what it leaves behind."""
    return f"interrupted by Ctrl-C; {LEAVES.get(command, 'nothing was written')}"


def sentence_of(error: BaseException, root: Path | None = None) -> str:
    """One sentence about an error that a person can fix; empty for any other error."""
    from resources.tracking.errors import TrackingError

    said = masked("".join(traceback.format_exception(error)))
    place = root or Path.cwd()
    if isinstance(error, KeyboardInterrupt):
        return interrupted("run")
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

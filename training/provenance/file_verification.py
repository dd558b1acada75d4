"""Check the files of artifacts that questions read: once for a root, as long as they do not change."""

from __future__ import annotations

from pathlib import Path

from training.contract.files.checked import is_known, note_sound
from training.contract.files.checksums import identity_of
from training.contract.job import InputArtifact
from training.data.checksum_cache import table_in_use


def sound(item: InputArtifact, name: str) -> Path:
    """Return the path of an artifact's file after verifying its checksum.

    The file is not read if a table says that it has not changed since it was last verified. Raise RefusedInput if
    the file is damaged.
    """
    path, table = Path(item.path, name), table_in_use()
    expected = item.files()[name]["sha256"]
    if not path.exists() or is_known(path, expected):
        return item.file(name)
    size, changed_ns, inode = identity_of(path)
    identity = f"{size} {changed_ns} {inode}"
    if table is not None and table.find(str(path), identity) == expected:
        note_sound(path, expected)
        return path
    item.file(name)
    if table is not None and is_known(path, expected):  # not what a takedown made of it
        table.keep(str(path), identity, expected, changed_ns=changed_ns)
    return path

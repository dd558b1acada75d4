"""`pedigree gc` for a root in an object store: free this machine's folder, and remove nothing in the store."""

from __future__ import annotations

from typing import Any

from assets.answers.gc.needed import Needed
from assets.answers.gc.unneeded import Removable, as_json
from assets.services.cached import cached, free
from assets.state.removal_lock import only_one
from resources.profile import Profile
from training.contract.files.stored_root import StoredRoot

CACHED = "cached"


def collect_here(stored: StoredRoot, profile: Profile, *, removes: bool) -> dict[str, Any]:
    """Return which files a root's store holds for certain and nobody uses here; with `removes`, remove them here.

    Raise DataError if the store does not answer, or if another process is collecting.
    """
    root = stored.folder
    with only_one(root, "gc.one.lock", "gc"):
        found = cached(root, profile)
        gone = free(root, profile, found) if removes else found
    entries = [
        Removable(
            path=one.folder,
            kind=CACHED,
            asset=one.folder.parent.name,
            bytes=one.bytes,
            why=f"in the store too: {len(one.files):,} {'file' if len(one.files) == 1 else 'files'}",
            fingerprint=one.folder.name,
        )
        for one in gone
    ]
    note = f"everything in {stored.objects.address}, where nothing is removed"
    told = as_json(root, entries, Needed(paths=frozenset(), notes=(note,)), kept=None)
    return told | {"removed": removes}

"""The folder of a root: where it is, whether it is one, can be written, or is full."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path

from assets.services.cached import max_bytes
from training.contract.files.full_disk import told_of_full_disk
from training.contract.files.objects import PACKAGES, Objects, StoreDown
from training.contract.files.stored_root import STORE_FILE, make_stored_root
from training.contract.files.stored_takedowns import bring_takedowns
from training.contract.job import DataError
from training.contract.secrets import masked
from training.contract.user_input.places import local_path

log = logging.getLogger(__name__)

SQLITE_FAILS = "disk I/O error"
NO_SPACE_BYTES = 4 << 20


def full_disk(said: str, root: Path) -> str:
    """A sentence for an error that a full disk caused; empty for any other error.

    A stage, the metrics spool and Dagster's database report a full disk in different words. SQLite's "disk I/O error"
    has other causes too, so it counts only if less than 4 MiB are free.
    """
    free_bytes = shutil.disk_usage(next(place for place in (root, *root.parents) if place.exists())).free
    cause = told_of_full_disk(said)
    if not cause and free_bytes < NO_SPACE_BYTES:
        cause = next((line.strip() for line in said.splitlines() if SQLITE_FAILS in line), "")
    if not cause:
        return ""
    return (
        f"disk full under {root}, {free_bytes / 1e6:.1f} MB are free ({cause}); nothing of what was under way was "
        "committed. Free space and run again: what is finished is used."
    )


_STORED = re.compile(rf"({'|'.join(PACKAGES)}):/+([^/?#]+(?:/[^?#]*?)?)/*")  # `Path` has left one slash of two


def stored(given: str | Path, where: str) -> Objects | None:
    """Return the object store that an address such as s3://bucket/prefix names; None if `given` is a path.

    Raise DataError, with `where` it was given, if the address holds a secret.
    """
    found = _STORED.fullmatch(str(given))
    if found is None:
        return None
    address = f"{found[1]}://{found[2]}"
    if masked(address) != address:
        raise DataError(f"{where}: {masked(address)} holds a secret; the store's own settings and variables name it")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return Objects(address, endpoint if found[1] == "s3" else "")


def root_folder(given: str | Path, where: str) -> Path:
    """Return the folder of a root that a person gave in `where`.

    For an address in an object store, such as s3://bucket/prefix, it is the folder in which this machine works on that
    root; `PEDIGREE_CACHE` says where such folders are. Raise DataError if the store cannot be used, or if the variable
    that says how large the folder may become is no number.
    """
    objects = stored(given, where)
    if objects is None:
        return local_path(given, where)
    base = os.environ.get("PEDIGREE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "pedigree")
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", objects.address.partition("://")[2])[:60]
    digest = hashlib.sha256(f"{objects.endpoint} {objects.address}".encode()).hexdigest()[:8]
    folder = Path(os.path.abspath(Path(base).expanduser())) / f"{name}-{digest}"
    max_bytes()
    if not (folder / STORE_FILE).exists():
        objects.check_conditions()
        make_stored_root(folder, objects)
    try:
        bring_takedowns(folder)
    except StoreDown as error:  # services start all the same; whoever compares asks again
        log.warning("%s: what was withdrawn elsewhere is not known: %s", folder, error)
    return folder


def check_root(root: Path) -> Path:
    """Return the folder of `root`. Raises DataError if it is not a folder and cannot become one."""
    root = root_folder(root, "--root")
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

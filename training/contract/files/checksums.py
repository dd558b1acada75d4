"""Checksums of files and digests of plain data. Standard library only.

A process knows the checksum of a file that it wrote itself through `training.contract.files.writing.written`, and reads
no such file again to find it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Identity = tuple[int, int, int]  # size in bytes, time of the last change in nanoseconds, inode

_written: dict[str, tuple[str, Identity]] = {}  # by path: the sha256 that was taken while the file was written


def canonical_json(value: Any) -> str:
    """Return plain data as canonical JSON, so that equal data give the same text: keys sorted, no spaces.

    Raise ValueError for NaN and infinity.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(value: Any) -> str:
    """Return the sha256 (hex) of the canonical JSON of plain data."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()


def digest_of_files(files: Iterable[dict[str, Any]]) -> str:
    """Return the digest of an artifact, a sha256 over the paths and checksums of the files in its manifest."""
    return digest_of(sorted([entry["path"], entry["sha256"]] for entry in files))


def at_once(name: str, flags: int) -> int:
    """Open a file for `open(…, opener=at_once)`, without waiting for whoever is at the other end of a pipe.

    A pipe without another end reads as empty. Raise OSError if it would be written.
    """
    return os.open(name, flags | os.O_NONBLOCK, 0o666)


def sha256_of(path: Path) -> str:
    """Return the sha256 (hex) of a file's bytes."""
    with open(path, "rb", opener=at_once) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def identity_of(path: str | os.PathLike[str]) -> Identity:
    """Return size, time of last change and inode of a file.

    A change of the file changes them, so that the file need not be read to notice it.
    """
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ino


def note_written(path: Path, sha256: str) -> None:
    """Remember the checksum of a file that this process has just written, for `sha256_of_written`."""
    _written[str(path)] = sha256, identity_of(path)


def sha256_of_written(path: Path) -> str:
    """Return the sha256 (hex) of a file: computed while this process wrote it, or else by reading the file."""
    sha256, identity = _written.get(str(path), ("", (0, 0, 0)))
    return sha256 if sha256 and identity == identity_of(path) else sha256_of(path)

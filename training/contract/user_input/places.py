"""Paths on this machine. Every option, setting and variable that names a folder, or a file to write, is read here."""

from __future__ import annotations

import re
from pathlib import Path

from training.contract.job import DataError
from training.contract.secrets import masked

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)  # `Path` has left one slash of two


def local_path(given: str | Path, where: str) -> Path:
    """Return the path that a person gave in the option, field or variable `where`.

    Raise DataError for an address, such as s3://bucket/folder, of which `Path` would make the local folder `s3:`.
    """
    if found := _ADDRESS.fullmatch(str(given)):
        address = masked(f"{found[1]}://{found[2]}")
        raise DataError(
            f"{where}: {address} is an address, and a path on this machine is needed: only sources of data, roots"
            " and exports are in object stores"
        )
    return Path(given)

"""Check that every line of a list of domains, URLs and document ids can match a page; terms.py has the format.

A line that can match nothing, such as a domain with a port or a reason after a space instead of a tab, would be
mistaken for a rule that is in force.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterable
from functools import lru_cache

from training.data.documents import decompressed_text
from training.data.extract.terms import DOCUMENT_ID, _cells
from training.data.sources import checksum_of, open_uri
from training.job import DataError

LABEL = r"[^\W_](?:[\w-]*\w)?"
DOMAIN = re.compile(rf"(?:{LABEL}\.)+{LABEL}\.?|\.{LABEL}")  # a whole top-level domain needs a dot: `.example`
ADDRESS = re.compile(rf"(?:https?://)?(?:{LABEL}(?:\.{LABEL})*|\d+(?:\.\d+){{3}}|\[[0-9a-f:.]+\])(?::\d+)?/\S*", re.I)
KEY_ENTRY = re.compile(r"=[^\s/()=]+(?:,|\)\S*)")  # =org,example, or =org,example)/page
SHOWN = 60  # characters of a line in an error message


def check_lists(uris: Iterable[str]) -> None:
    """Raise DataError for the first line that can match no page, with list, line number and what would be right."""
    for uri in uris:
        _check(uri, checksum_of(uri))


@lru_cache(maxsize=64)
def _check(uri: str, _checksum: str) -> None:
    try:
        with open_uri(uri) as stream, decompressed_text(io.BytesIO(stream.read()), uri) as lines:
            for number, line in enumerate(lines, 1):
                if problem := problem_of(_cells(line)[0]):
                    raise DataError(f"{uri}, line {number}: {line.strip()[:SHOWN]!r} {problem}")
    except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{uri}: is no list that can be read ({error})") from None


def problem_of(entry: str) -> str:
    """Return why an entry can match no page and how to correct it; empty if it can match."""
    if not entry or ("://" not in entry and DOCUMENT_ID.fullmatch(entry)):
        return ""
    if KEY_ENTRY.fullmatch(entry):
        return ""
    if re.search(r"\s", entry):
        return "has white space in it; a reason follows after a tab"
    if "/" in entry:
        return (
            ""
            if ADDRESS.fullmatch(entry)
            else "is no address of a page; write https://example.org/page or example.org/folder/"
        )
    if DOMAIN.fullmatch(entry):
        return ""
    return (
        "is no domain, address or document id; write example.org, its subdomains are meant too, or .org for all of it"
    )

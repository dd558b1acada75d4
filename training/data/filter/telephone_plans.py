"""Which digits are a telephone number of some country, by the numbering plans in `lists/telephone_plans.txt`.

The plans are those of libphonenumber. They are kept as a table of 10 kB, because its package has 23 MB, nearly all of
it names of places and carriers in many languages. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "lists" / "telephone_plans.txt"
LOCAL_DIGITS = 8  # a number without area code has no more, and is written without the national prefix


@cache
def _plans() -> tuple[tuple[str, str, bool, re.Pattern[str]], ...]:
    lines = [line for line in FILE.read_text("utf-8").splitlines() if not line.startswith("#")]
    parts = [line.split(" ", 3) for line in lines]
    return tuple((code, prefix.strip("-"), must == "1", re.compile(plan)) for code, prefix, must, plan in parts)


@cache
def _by_code() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for code, prefix, _, plan in _plans():
        found.setdefault(code, []).append((prefix, plan))
    return found


@cache
def _national() -> re.Pattern[str]:
    """Return one pattern of all plans, with the national prefix and, where it may be left out, without."""
    written = (prefix + f"(?:{plan.pattern})" for _, prefix, _, plan in _plans() if prefix)
    bare = (plan.pattern for _, _, must, plan in _plans() if not must)
    return re.compile("|".join(dict.fromkeys((*written, *bare))))


def _parts(digits: str) -> Iterator[tuple[str, str, re.Pattern[str]]]:
    for length in (1, 2, 3):
        for prefix, plan in _by_code().get(digits[:length], ()):
            yield digits[length:], prefix, plan


def is_international(digits: str) -> bool:
    """Whether digits are a country code and a number of that country, also with its national prefix between them."""
    return any(
        plan.fullmatch(rest) or (prefix and rest.startswith(prefix) and plan.fullmatch(rest, len(prefix)))
        for rest, prefix, plan in _parts(digits)
    )


def has_country(digits: str) -> bool:
    """Whether digits begin with the code of a country."""
    return next(_parts(digits), None) is not None


def is_national(digits: str, *, is_local: bool = True) -> bool:
    """Whether digits are a number of some country as it is written there.

    The national prefix must be there where the country writes it always; a number with `is_local` may lack it if it is
    short enough to be one without an area code.
    """
    if is_local and len(digits) <= LOCAL_DIGITS:
        return True
    return _national().fullmatch(digits) is not None

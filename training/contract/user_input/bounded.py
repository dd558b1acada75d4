"""Check the values of a recipe or profile by the types of its fields, beyond what each record checks itself.

Numbers and texts are bounded before any record is made of them. All values are looked at in the record, so
that a new field is checked without a line here. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, get_args, get_type_hints
from urllib.parse import urlsplit

from training.contract.records import RecipeError, Uri

LARGEST = 2**63 - 1
LONGEST = 100_000  # characters of a text
_UNPRINTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")


def check_bounds(data: Mapping[str, Any], bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raise RecipeError that lists the numbers of a recipe's or profile's mapping that lie outside their bounds.

    `bounds` are the least and the largest number by a pattern of a field's path without places in lists; the first that
    fits counts. Of a number below the bounds of all other fields, `*`, the record says more, or else `check_values`.
    """
    found = ((*number, *_bounds_of(bounds, number[1])) for number in _numbers(data, "", ""))
    wrong = [
        _outside(place, value, least, most)
        for place, _, value, pattern, least, most in found
        if value > most or (value < least and pattern != "*") or _is_too_large(value)
    ]
    if wrong:
        raise RecipeError(*dict.fromkeys(wrong))


def check_texts(data: Any) -> None:
    """Raise RecipeError that lists the texts and names in plain data that are too long, or that nobody could see."""
    if wrong := [f"{place}: {why}" for place, text in _texts(data, "") if (why := _why_no_text(text))]:
        raise RecipeError(*wrong)


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield each text of plain data with its place, and each name in a mapping with the mapping's place."""
    if isinstance(value, dict):
        for name, one in value.items():
            if isinstance(name, str) and _why_no_text(name):
                yield place or "a field", name
            else:
                yield from _texts(one, _joined(place, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _texts(one, f"{place}[{number}]")
    elif isinstance(value, str):
        yield place, value


def _why_no_text(text: str) -> str:
    if len(text) > LONGEST:
        return f"a text of {len(text)} characters; at most {LONGEST} are right"
    found = _UNPRINTED.search(text)
    return f"has U+{ord(found[0]):04X}, which is no character that is printed" if found else ""


def _bounds_of(bounds: Mapping[str, tuple[float, float]], field: str) -> tuple[str, float, float]:
    return next((pattern, least, most) for pattern, (least, most) in bounds.items() if _matches(field, pattern))


def _is_too_large(value: float) -> bool:
    """Whether a value is a whole number beyond 64 bits, which no field takes."""
    return type(value) is int and abs(value) > LARGEST


def _outside(place: str, value: float, least: float, most: float) -> str:
    right = f"at most {LARGEST}" if _is_too_large(value) else f"{least:g} to {most:g}"
    return f"{place}={str(value)[:40]}; {right} is right"


@cache
def _matches(field: str, pattern: str) -> bool:
    return fnmatchcase(field, pattern)


def _numbers(value: Any, place: str, field: str) -> Iterator[tuple[str, str, int | float]]:
    """Yield each number of plain data: its place, its field's path, and the number."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _numbers(one, _joined(place, name), _joined(field, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _numbers(one, f"{place}[{number}]", field)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place, field, value


def _joined(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the values of a record may be: `why_no_address` returns why an address can name nothing, or ""."""

    bounds: Mapping[str, tuple[float, float]]
    why_no_address: Callable[[str], str]
    addresses: tuple[str, ...] = ()  # patterns of fields with addresses, beside those of the type `Uri`
    blank: tuple[str, ...] = ()  # patterns of fields whose text may be white space
    repeated: tuple[str, ...] = ()  # patterns of lists in which a text may stand twice


def check_values(record: Any, name: str, given: Allowed) -> None:
    """Raise RecipeError that lists the wrong numbers, blank texts, wrong addresses and repeated entries of a record.

    `name` is the path of the record, such as a recipe's section; empty for a whole profile.
    """
    if wrong := list(dict.fromkeys(_wrong(record, name, name, given))):
        raise RecipeError(*wrong)


def _wrong(value: Any, place: str, field: str, given: Allowed, *, is_uri: bool = False) -> Iterator[str]:
    if is_dataclass(value):
        hints = _hints(type(value))
        for one in fields(value):
            own, inner = getattr(value, one.name), _joined(field, one.name)
            if own != _default(one):
                named = Uri in (hint := hints[one.name], *get_args(hint)) or _fits(inner, given.addresses)
                yield from _wrong(own, _joined(place, one.name), inner, given, is_uri=named)
    elif isinstance(value, tuple):
        if not _fits(field, given.repeated):
            yield from _repeated(value, place)
        for number, one in enumerate(value):
            yield from _wrong(one, f"{place}[{number}]", field, given, is_uri=is_uri)
    elif isinstance(value, str):
        if not value.strip() and not (value and _fits(field, given.blank)):
            yield f"{place}: an empty text; leave the field out, or name what is meant"
        elif is_uri and (why := given.why_no_address(value)):
            yield f"{place}: {why}"
    else:  # again, because a record reads a text such as 3e-4 as a number
        for where, path, number in _numbers(value, place, field):
            _, least, most = _bounds_of(given.bounds, path)
            if not least <= number <= most:
                yield _outside(where, number, least, most)


def _repeated(value: tuple[Any, ...], place: str) -> Iterator[str]:
    if all(isinstance(one, (int, float)) for one in value):
        return
    firsts: dict[Any, int] = {}  # of texts, of which there may be 90,000: the WARC files of a crawl
    for number, one in enumerate(value):
        first = firsts.setdefault(one, number) if isinstance(one, str) else value.index(one)
        if first < number:
            yield f"{place}[{number}]: stands in {place}[{first}] too; leave one of them out"


def _fits(field: str, patterns: tuple[str, ...]) -> bool:
    return any(_matches(field, pattern) for pattern in patterns)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def why_no_host(uri: str) -> str:
    """Return why a web address cannot be asked: no host, a port that is none, or white space; empty if it can."""
    host = None
    try:
        host = urlsplit(uri).hostname
        is_port = urlsplit(uri).port != 0
    except ValueError:
        is_port = False
    if host and not is_port:
        return f"{uri}: names no port from 1 to 65535"
    if not host:
        return f"{uri}: names no host"
    return f"{uri}: has white space; write a space as %20" if set(uri.partition("?")[0]) & set(" \t\n") else ""

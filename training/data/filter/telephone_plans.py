"""Which digits are a telephone number of some country, and how numbers are written where a text comes from.

The plans in `lists/telephone_plans.txt` and the ways of writing in `lists/telephone_forms.txt` are those of
libphonenumber. They are kept as tables of 54 kB, because its package has 23 MB, nearly all of it names of places and
carriers in many languages. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

FILE = Path(__file__).parent / "lists" / "telephone_plans.txt"
FORMS = Path(__file__).parent / "lists" / "telephone_forms.txt"
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


@dataclass(frozen=True, slots=True)
class Form:
    """How a country writes its numbers; `must` says whether the national prefix stands before each."""

    prefix: str
    must: bool
    groups: re.Pattern[str]
    loose: re.Pattern[str]
    number: re.Pattern[str]

    def written(self, number: str) -> str:
        """Return how digits with `-` between their groups are written, or "" if they are no number of the country.

        With the national prefix this is `prefixed` in the country's groups and `led` otherwise; without it `grouped`
        and `bare`.
        """
        if self.prefix and number.startswith(self.prefix):
            rest = number[len(self.prefix) :].lstrip("-")
            if self._has(rest):
                return "prefixed" if self.groups.fullmatch(rest) else "led"
        if self.must or not self._has(number):
            return ""
        return "grouped" if self.groups.fullmatch(number) else "bare"

    def _has(self, number: str) -> bool:
        return bool(self.loose.fullmatch(number) and self.number.fullmatch(number.replace("-", "")))


@cache
def _forms() -> tuple[tuple[str, tuple[str, ...], Form], ...]:
    """Return the top-level domain, the languages and the form of each country."""
    lines = [line for line in FORMS.read_text("utf-8").splitlines() if not line.startswith("#")]
    parts = [line.split(" ", 5) for line in lines]
    return tuple(
        (top, tuple(languages.split(",")), Form(prefix.strip("-"), must == "1", *_grouped(sizes), re.compile(number)))
        for top, languages, prefix, must, sizes, number in parts
    )


def _grouped(sizes: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return two patterns of numbers: in these groups, and in one piece or in any groups of two to five digits.

    Numbers whose groups after the first are pairs, or one, are written in a country's way too.
    """
    forms = ["-".join(rf"\d{{{size}}}" for size in form.split("-")) for form in sizes.split(";")]
    firsts = "|".join(dict.fromkeys(form.partition("-")[0] for form in forms))
    exact = rf"{'|'.join(forms)}|(?:{firsts})-(?:\d{{5,}}|\d{{2,3}}(?:-\d\d)+)"
    return re.compile(exact), re.compile(rf"{exact}|\d+|\d{{2,5}}(?:-\d{{2,5}})+")


_FITS = ("", "bare", "led", "grouped", "prefixed")  # from the least that is known to the most


@lru_cache(maxsize=1024)
def forms_of(language: str, top: str) -> tuple[Form, ...]:
    """Return the forms of the countries in which a language is spoken, and of that with a top-level domain."""
    return tuple(form for country, languages, form in _forms() if top == country or language in languages)


@cache
def every_form() -> tuple[Form, ...]:
    return tuple(form for _, _, form in _forms())


def written(number: str, forms: tuple[Form, ...]) -> str:
    """Return how a number is written, as `Form.written` does, by the form that it fits best."""
    groups = re.sub(r"[^0-9]+", "-", number).strip("-")
    return max((form.written(groups) for form in forms), key=_FITS.index, default="")

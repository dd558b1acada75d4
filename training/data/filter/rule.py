"""Definition of a filter rule: its settings, the columns that it measures, how it measures a page, and its limits.

The rules are the files of `training.data.filter.rules`. Reading a recipe imports all of them, so they import heavy
modules only inside the functions that measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from training.contract.records import RecipeError

if TYPE_CHECKING:
    from training.data.quality.quality import QualityModels
    from training.data.words.table import Words

KEPT = ""


@dataclass(slots=True)
class Page:
    """One document while the filter rules are applied to it.

    `text` and `columns` are written to the document at the end.
    """

    text: str
    url: str
    columns: dict[str, Any]
    id: str = ""
    extracted: str = ""  # the text before any rule edited it
    code: tuple[int, ...] = ()  # where code begins and ends in `extracted`, in turn
    redactions: dict[str, int] = field(default_factory=dict)
    redacted: tuple[str, str] = ("", "")  # the text before and after personal data was replaced
    words: Words | None = None  # words of the page's current or of an earlier text

    @property
    def language(self) -> str:
        """The page's language code; "" if unknown."""
        return self.columns.get("language") or ""

    @property
    def kind(self) -> str:
        """Kind of page, such as `code`, as the extractor determined it; "" if unknown."""
        return self.columns.get("kind") or ""

    @property
    def prose(self) -> str:
        """The text without its code; the whole text if a rule has edited it."""
        if not self.code or self.text is not self.extracted:
            return self.text
        places = (0, *self.code, len(self.text))
        return " ".join(self.text[start:end] for start, end in zip(places[::2], places[1::2], strict=True))


def page_of(row: Mapping[str, Any]) -> Page:
    """Return an extracted document as a page for the rules."""
    # texts not from `extract` have no kind
    hints = {name: row[name] for name in ("language", "language_score", *(["kind"] if "kind" in row else []))}
    text, code = row["text"], tuple(row.get("code") or ())
    return Page(text=text, url=row["url"] or "", columns=hints, id=row.get("id", ""), extracted=text, code=code)


Answer = Callable[[Page], str]
"""Says why a page goes; KEPT for a page that stays."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The allowed range of a measured column. `least` or `most` is None if there is no limit on that side."""

    reason: str
    column: str
    least: float | None = None
    most: float | None = None

    def is_broken(self, columns: Mapping[str, Any]) -> bool:
        """Whether the value is outside the range; NaN is never outside."""
        value = columns[self.column]
        return (self.least is not None and value < self.least) or (self.most is not None and value > self.most)


def first_broken(limits: Iterable[Limit], page: Page) -> str:
    """Return the reason of the first limit that the page breaks; KEPT if it breaks none."""
    return next((limit.reason for limit in limits if limit.is_broken(page.columns)), KEPT)


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """Settings of the section `filter` that all rules share. Rules are applied in the order of `rules`."""

    rules: tuple[str, ...] = ()
    languages: tuple[str, ...] = ("en",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """Functions with which several rules measure pages.

    Rules receive them, so that no rule's file imports heavy modules. `identify` returns a text's language and its
    probability. `words` returns the words of a page's current text.
    """

    models: QualityModels | None
    identify: Callable[[str], tuple[str, float]]
    words: Callable[[Page], Words]

    def reference_models(self, rule: str) -> QualityModels:
        """Return the models trained on the reference texts. Raise RecipeError if the recipe names no such texts."""
        if self.models is None or self.models.classifier is None:
            raise RecipeError(
                f"filter.rules: {rule!r} needs the quality models, but quality.reference is empty; name reference texts"
                f" there (and quality.snapshots), or leave {rule!r} out"
            )
        return self.models


@dataclass(frozen=True, slots=True)
class Column:
    """Declaration of a column of the stored scores.

    It holds text if `is_text`, otherwise numbers. With `on_document` it is added to documents too.
    """

    name: str
    is_text: bool = False
    on_document: bool = False


S = TypeVar("S", bound=CommonSettings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(Generic[S]):
    """A filter rule, as declared in its file; its name is the name of the file, or the one that the recipe gives it.

    `measure` writes `columns` on a page, may edit its text, and returns a reason to drop the page whatever the limits
    are. `limits` are compared with the columns afterwards, in order. A rule that cannot be written as limits has the
    function `decide` in their place. A measurement must not depend on limits, so that it stays valid when they change:
    `measure` sees the recipe's values of the settings in `measured_by` only, and defaults for all others.
    """

    settings: type[S]  # its fields belong to the section `filter`
    measured_by: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    measure: Callable[[S, Tools], Answer] = lambda settings, tools: lambda page: KEPT
    limits: Callable[[S], tuple[Limit, ...]] = lambda settings: ()
    decide: Callable[[S], Answer] | None = None
    edit: Callable[[S], Callable[[str], str]] | None = None  # for rules that cut text: returns the edited text
    reasons: tuple[str, ...] = ()  # those that `measure` and `decide` return, and limits that the defaults leave out
    check: Callable[[S], None] = lambda settings: None  # raises RecipeError for settings that make no sense
    read: Callable[[Mapping[str, Any], str], S] | None = None  # reads settings that no class declares (settings, where)

    def decision(self, settings: S) -> Answer:
        """Return a function that applies the recipe's limits to a measured page."""
        if self.decide is not None:
            return self.decide(settings)
        limits = self.limits(settings)
        return lambda page: first_broken(limits, page)


def numbers(rule: str, measured: Callable[[Page], Mapping[str, float]]) -> Answer:
    """Return a `measure` function that writes the numbers `measured` of a text into columns named `rule.number`.

    It drops empty pages.
    """

    def measure(page: Page) -> str:
        if not page.text.strip():
            return "empty"
        page.columns.update({f"{rule}.{name}": value for name, value in measured(page).items()})
        return KEPT

    return measure

"""What a filter rule is: its settings, the columns that it measures, how it measures a page, and its limits.

The rules themselves are the files of `training.data.filter.rules`. Reading a recipe imports all of them, so they import
nothing heavy except inside the functions that measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from training.records import RecipeError

if TYPE_CHECKING:
    from training.data.quality.quality import QualityModels
    from training.data.words.table import Words

KEPT = ""


@dataclass(slots=True)
class Page:
    """One document on its way through the rules. `text` and `columns` are what the document will be written with."""

    text: str
    url: str
    columns: dict[str, Any]
    redactions: dict[str, int] = field(default_factory=dict)
    redacted: tuple[str, str] = ("", "")  # the text that personal data was replaced in, and what it became
    words: Words | None = None  # of a text that it had

    @property
    def language(self) -> str:
        """Language code, "" when unknown."""
        return self.columns.get("language") or ""


def page_of(row: Mapping[str, Any]) -> Page:
    """An extracted document as the rules take it."""
    hints = {name: row[name] for name in ("language", "language_score")}
    return Page(text=row["text"], url=row["url"] or "", columns=hints)


Answer = Callable[[Page], str]
"""Says why a page goes; KEPT for a page that stays."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a measured column may be. `least` and `most` are None where there is no limit on that side."""

    reason: str
    column: str
    least: float | None = None
    most: float | None = None

    def is_broken(self, columns: Mapping[str, Any]) -> bool:
        """Whether the value is outside; one that is not a number is not."""
        value = columns[self.column]
        return (self.least is not None and value < self.least) or (self.most is not None and value > self.most)


def first_broken(limits: Iterable[Limit], page: Page) -> str:
    """The reason of the first limit that the page breaks, KEPT when all hold."""
    return next((limit.reason for limit in limits if limit.is_broken(page.columns)), KEPT)


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """What every rule knows of the section `filter`. Rules run in the order of `rules`."""

    rules: tuple[str, ...] = ()
    languages: tuple[str, ...] = ("en",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """What several rules measure with, so that a rule's file imports none of it.

    `identify` gives a text's language and its probability. `words` gives the words of a page's text as it is now.
    """

    models: QualityModels | None
    identify: Callable[[str], tuple[str, float]]
    words: Callable[[Page], Words]

    def reference_models(self, rule: str) -> QualityModels:
        """The models of the reference texts. RecipeError when the recipe names no such texts."""
        if self.models is None or self.models.classifier is None:
            raise RecipeError(
                f"filter.rules: {rule!r} needs the quality models, but quality.reference is empty; name reference texts"
                f" there (and quality.snapshots), or leave {rule!r} out"
            )
        return self.models


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the scores, of numbers unless `is_text`. With `on_document` the filtered documents have it too."""

    name: str
    is_text: bool = False
    on_document: bool = False


S = TypeVar("S", bound=CommonSettings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(Generic[S]):
    """A rule as its file offers it, under the name of the file.

    `measure` writes `columns` on a page, may edit its text, and says why a page goes whatever the limits are. `limits`
    are compared with the columns afterwards, in their order; `decide` takes their place where limits do not say it all.
    What was measured outlives a change of a limit, so `measure` sees the settings that `measured_by` names, and all
    others at their defaults.
    """

    settings: type[S]  # its fields belong to the section `filter`
    measured_by: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    measure: Callable[[S, Tools], Answer] = lambda settings, tools: lambda page: KEPT
    limits: Callable[[S], tuple[Limit, ...]] = lambda settings: ()
    decide: Callable[[S], Answer] | None = None
    edit: Callable[[S], Callable[[str], str]] | None = None  # what the rule makes of a text that it cuts parts out of
    check: Callable[[S], None] = lambda settings: None  # RecipeError for settings that cannot be meant

    def decision(self, settings: S) -> Answer:
        """What the recipe's limits say of a measured page."""
        if self.decide is not None:
            return self.decide(settings)
        limits = self.limits(settings)
        return lambda page: first_broken(limits, page)


def numbers(rule: str, measured: Callable[[Page], Mapping[str, float]]) -> Answer:
    """A measurement that writes numbers of a text in columns `rule.number`; an empty page goes."""

    def measure(page: Page) -> str:
        if not page.text.strip():
            return "empty"
        page.columns.update({f"{rule}.{name}": value for name, value in measured(page).items()})
        return KEPT

    return measure

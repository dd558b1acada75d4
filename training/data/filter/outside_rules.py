"""Filter rules from the user's own environment: a `Rule`, or a filter or formatter of datatrove.

What such a rule raises or returns is checked page by page, and a mistake is told under the rule's name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from training.contract.parts.outside import (
    OutsidePart,
    PartFailed,
    check_settings,
    find_part,
    guarded,
    named,
    read_settings,
)
from training.contract.records import RecipeError
from training.data.filter.rule import KEPT, Answer, CommonSettings, Page, Rule, Tools

_BLOCKS = {
    "datatrove.pipeline.filters.base_filter.BaseFilter": "filter",
    "datatrove.pipeline.formatters.base.BaseFormatter": "formatter",
}
_NOT_OURS = ("exclusion_writer",)  # an argument of datatrove's filters: Pedigree keeps dropped pages itself
DROPPED = "dropped"  # the reason if a block of datatrove gives none


@dataclass(frozen=True, slots=True)
class OutsideRule:
    """A filter rule from a package of the user's, with the name that the recipe gives it."""

    part: OutsidePart
    rule: Rule[Any]

    def settings(self, given: Mapping[str, Any], common: CommonSettings, where: str) -> Any:
        """Return the rule's settings: its own from the recipe, and those that all rules share."""
        if self.rule.read is not None:
            return self.rule.read(given, where)
        shared = {field.name: getattr(common, field.name) for field in fields(CommonSettings)}
        if wrong := shared.keys() & given.keys():
            raise RecipeError(f"{where}.{min(wrong)}: set it in filter, for all rules")
        return read_settings(self.rule.settings, {**given, **shared}, where=where)


@lru_cache(maxsize=256)
def outside_rule(name: str, place: str, known: tuple[str, ...]) -> OutsideRule:
    """Return the rule at `package.module:name`, or the one that a package registers under this name.

    Raise RecipeError if there is none, or if it is no rule.
    """
    part = find_part("rules", place, known)
    found = part.load()
    if kind := _kind_of_block(found):
        return OutsideRule(part, _checked(name, part, _rule_of_block(found, kind)))
    if not isinstance(found, Rule):
        raise RecipeError(
            f"{part.place!r} is a {type(found).__name__}; a rule is a training.data.filter.rule.Rule, or a class of"
            " datatrove's filters or formatters"
        )
    check_settings(found.settings, repr(part.place))
    if wrong := [column.name for column in found.columns if "." not in column.name or column.on_document]:
        raise RecipeError(f"{part.place!r}: column {wrong[0]!r}; columns of such a rule are scores, named RULE.NUMBER")
    return OutsideRule(part, _checked(name, part, found))


def _checked(name: str, part: OutsidePart, rule: Rule[Any]) -> Rule[Any]:
    """Return the rule with functions that report every error under the rule's name."""
    who = f"filter rule {name} ({part.place})"
    decide = rule.decide

    def measure(settings: Any, tools: Tools) -> Answer:
        return _guarded(who, _made(who, lambda: rule.measure(settings, tools)), rule)

    def decided(settings: Any) -> Answer:
        assert decide is not None
        return _guarded(who, _made(who, lambda: decide(settings)))

    return replace(
        rule,
        measure=measure,
        decide=decided if decide else None,
        limits=guarded(who, "gives no limits", rule.limits),
        check=guarded(who, "cannot check its settings", rule.check),
    )


def _made(who: str, make: Callable[[], Answer]) -> Answer:
    with named(who, "cannot be prepared"):
        return make()


def _guarded(who: str, answer: Answer, rule: Rule[Any] | None = None) -> Answer:
    def answered(page: Page) -> str:
        with named(who, f"failed at document {page.id}"):
            reason = answer(page)
        if not isinstance(reason, str):
            raise PartFailed(f"{who} gave {reason!r} for document {page.id}; a reason is text, empty if the page stays")
        if not isinstance(page.text, str):
            raise PartFailed(f"{who} left a {type(page.text).__name__} as the text of document {page.id}")
        if rule is not None and reason == KEPT:
            _check_columns(who, page, rule)
        return reason

    return answered


def _check_columns(who: str, page: Page, rule: Rule[Any]) -> None:
    """Raise PartFailed if a kept page lacks a declared column, or has a value of another type in it."""
    for column in rule.columns:
        value = page.columns.get(column.name)
        is_right = isinstance(value, str) if column.is_text else isinstance(value, int | float) and math.isfinite(value)
        if not is_right:
            wanted = "text" if column.is_text else "a finite number"
            raise PartFailed(f"{who} left {value!r} in column {column.name} of document {page.id}; it must be {wanted}")


# Filters and formatters of datatrove


@dataclass(frozen=True, kw_only=True)
class Arguments(CommonSettings):
    """The arguments for a block of datatrove, as pairs of name and value."""

    given: tuple[tuple[str, Any], ...] = ()


def _kind_of_block(found: Any) -> str:
    """Return `filter` or `formatter` if the class is such a class of datatrove, else an empty text."""
    bases = getattr(found, "__mro__", ())
    return next((kind for base in bases if (kind := _BLOCKS.get(f"{base.__module__}.{base.__qualname__}", ""))), "")


def _rule_of_block(block: type[Any], kind: str) -> Rule[Arguments]:
    parameters = inspect.signature(block).parameters

    def read(given: Mapping[str, Any], where: str) -> Arguments:
        for name in given:
            if name not in parameters or name in _NOT_OURS:
                known = ", ".join(one for one in parameters if one not in _NOT_OURS)
                raise RecipeError(f"{where}.{name}: not an argument of {block.__name__}; arguments are {known}")
        absent = [one.name for one in parameters.values() if one.default is one.empty and one.name not in given]
        if absent:
            raise RecipeError(f"{where}.{absent[0]}: missing; {block.__name__} needs it")
        return Arguments(given=tuple(given.items()))

    def edit(settings: Arguments) -> Callable[[str], str]:
        return block(**dict(settings.given)).format

    def measure(settings: Arguments, tools: Tools) -> Answer:
        del tools
        made = block(**dict(settings.given))
        return _filtered(made) if kind == "filter" else _formatted(made)

    return Rule(settings=Arguments, measure=measure, read=read, edit=edit if kind == "formatter" else None)


def _filtered(made: Any) -> Answer:
    """Return a function that applies a filter of datatrove to a page; the filter may edit the text of kept pages."""
    from datatrove.data import Document

    def measure(page: Page) -> str:
        known = {name: page.columns[name] for name in ("language", "language_score") if page.columns.get(name)}
        document = Document(text=page.text, id=page.id, metadata={"url": page.url, **known})
        [answer] = made.filter_batch([document])
        is_kept, reason = answer if isinstance(answer, tuple) else (answer, "")
        if is_kept:
            page.text = document.text
            return KEPT
        return (reason or DROPPED).replace(":", ".")

    return measure


def _formatted(made: Any) -> Answer:
    def measure(page: Page) -> str:
        page.text = made.format(page.text)
        return KEPT

    return measure

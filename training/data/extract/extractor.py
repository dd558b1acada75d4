"""The declaration of an extractor from the user's own environment. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from training.contract.parts.outside import NoSettings, PartFailed, PartsOf, guarded

KIND = "extractors"


@dataclass(frozen=True, kw_only=True, slots=True)
class Extractor:
    """An extractor: `read` returns the main text of a page, from its decoded HTML and the settings; "" if it has none.

    `settings` is its record, whose fields have defaults. The limits on bytes, nodes and depth are applied before, and
    the page's title, date, language and terms are read by Pedigree.
    """

    read: Callable[[str, Any], str]
    settings: type = NoSettings


def outside_extractor(name: str, parts: PartsOf, known: tuple[str, ...]) -> tuple[Extractor, Any]:
    """Return the extractor from outside that `extract.extractor` names, with its settings.

    Raise RecipeError if there is none.
    """
    found = parts.load(KIND, name, known, field="extractor", cls=Extractor)
    who = f"extractor {name}"
    read = guarded(who, "failed", found.read)

    def text(html: str, settings: Any) -> str:
        made = read(html, settings)
        if not isinstance(made, str):
            raise PartFailed(f"{who} gave a {type(made).__name__}; it must give text")
        return made

    return replace(found, read=text), parts.settings(name, found.settings)

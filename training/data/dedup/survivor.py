"""The record that a survivor policy declares, and the policies from outside, whose errors have the policy's name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from training.contract.parts.outside import NoSettings, PartFailed, PartsOf, named

KIND = "survivors"


@dataclass(frozen=True, kw_only=True, slots=True)
class Survivor:
    """The declaration of one policy: of the duplicates in one snapshot, the document with the largest `value` stays.

    `value` gets the `columns` of one document by name, and the policy's settings.
    """

    value: Callable[[Mapping[str, Any], Any], float]
    columns: tuple[str, ...] = ("text",)
    settings: type = NoSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A policy of a recipe: its name, the columns that it reads, and the value of a document.

    `value` is None for Pedigree's own policies, whose values are computed for whole columns.
    """

    name: str
    columns: tuple[str, ...]
    value: Callable[[Mapping[str, Any]], float] | None = None


def outside_survivor(name: str, parts: PartsOf, known: tuple[str, ...]) -> Policy:
    """Return the policy from outside that `dedup.survivor` names. Raise RecipeError if there is none.

    Its errors, and values that are no finite number, are raised as PartFailed with its name and the document's id.
    """
    found = parts.load(KIND, name, known, field="survivor", cls=Survivor)
    settings = parts.settings(name, found.settings)

    def value(document: Mapping[str, Any]) -> float:
        given = {column: document[column] for column in found.columns}
        with named(f"survivor policy {name}", f"failed at document {document['id']}"):
            number = found.value(given, settings)
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise PartFailed(
                f"survivor policy {name} gives document {document['id']} {number!r}; it must be a finite number"
            )
        return float(number)

    return Policy(name=name, columns=found.columns, value=value)

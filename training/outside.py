"""Parts from the user's own environment: found by `package.module:name`, or by a name that an installed package gives.

A package registers parts by entry points in the group of their kind, such as `pedigree.rules`. The modules must be
installed in the environment of Pedigree, or lie in a folder of `PYTHONPATH`. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from training.job import DataError
from training.records import RecipeError, did_you_mean

GROUP = "pedigree."  # of entry points, before the kind of part


class PartFailed(DataError):
    """The code of a part from outside raised an error or returned an invalid value."""


@dataclass(frozen=True, slots=True)
class OutsidePart:
    """A part of the user's, from outside the checkout, named as `package.module:name`."""

    place: str

    @property
    def module(self) -> str:
        """The dotted name of the module that defines the part."""
        return self.place.partition(":")[0]

    def load(self) -> Any:
        """Import the part and return it. Raise RecipeError, with the cause, if that cannot be done."""
        return _loaded(self.place)


def find_part(kind: str, name: str, known: tuple[str, ...] = ()) -> OutsidePart:
    """Return the part that is named as `package.module:name` or by an entry point of the group `pedigree.KIND`.

    `known` are the names of the project's own parts, for the sentence of the RecipeError if there is no such part.
    """
    if ":" in name:
        return OutsidePart(name)
    found = registered(kind)
    if name not in found:
        meant = did_you_mean(name, (*known, *found))
        listed = ", ".join(map(repr, (*known, *sorted(found))))
        raise RecipeError(
            f"{name!r} is not one of {listed}, nor package.module:name, nor registered as entry point {GROUP}{kind}"
            + (f";{meant}" if meant else "")
        )
    return OutsidePart(found[name])


def registered(kind: str) -> dict[str, str]:
    """Return the parts of a kind that installed packages register: the place of each by its name.

    Raise RecipeError if two packages register the same name.
    """
    found: dict[str, str] = {}
    for entry in entry_points(group=f"{GROUP}{kind}"):
        if found.setdefault(entry.name, entry.value) != entry.value:
            raise RecipeError(
                f"{entry.name!r} is registered twice in {GROUP}{kind}: {found[entry.name]}, {entry.value}"
            )
    return found


@lru_cache(maxsize=256)
def _loaded(place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        part: Any = import_module(module)
        for word in name.split("."):
            part = getattr(part, word)
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"{place!r}: no module {error.name!r}; install its package into Pedigree's environment, or put its folder"
            " on PYTHONPATH"
        ) from None
    except Exception as error:  # whatever the user's module raises while it is imported
        raise RecipeError(f"{place!r} cannot be imported: {type(error).__name__}: {error}") from error
    return part

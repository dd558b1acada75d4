"""Parts from the user's own environment: found by `package.module:name`, or by a name that an installed package gives.

A package registers parts by entry points in the group of their kind, such as `pedigree.rules`. The modules must be
installed in the environment of Pedigree, or lie in a folder of `PYTHONPATH`. Standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from training.contract.errors import DataError, RefusedInput, StopRequested
from training.contract.parts.contained import PartFailed, running
from training.contract.records import RecipeError, did_you_mean, read_record

T = TypeVar("T")

GROUP = "pedigree."  # of entry points, before the kind of part
FROM = "from"  # among the settings of a part that is not Pedigree's: its place


@dataclass(frozen=True, kw_only=True, slots=True)
class NoSettings:
    """The settings of a part that has none of its own."""


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


@dataclass(frozen=True, slots=True)
class PartsOf:
    """The field `parts` of one section of the recipe: settings of its parts by name, with `from` for a part's place."""

    section: str
    parts: Mapping[str, Mapping[str, Any]]

    def find(self, kind: str, name: str, known: Iterable[str], field: str) -> OutsidePart:
        """Return the part from outside that `field` of the section names.

        `known` are the names of Pedigree's own parts. Raise RecipeError if there is no such part.
        """
        where = f"{self.section}.{field}"
        if ":" in name:
            raise RecipeError(
                f"{where}: {name!r}; give it a short name here, and {self.section}.parts.NAME: {{from: …}}"
            )
        try:
            return find_part(kind, place_of(self.parts, name), tuple(known))
        except RecipeError as error:
            raise RecipeError(*(f"{where}: {one}" for one in error.problems)) from None

    def load(self, kind: str, name: str, known: Iterable[str], *, field: str, cls: type[T]) -> T:
        """Return the part from outside that `field` names, which must be of class `cls`.

        Its settings, if it may have some, must be a dataclass with a default for each field.
        """
        part = self.find(kind, name, known, field)
        found = part.load()
        if not isinstance(found, cls):
            raise RecipeError(
                f"{self.section}.{field}: {part.place!r} is a {type(found).__name__}; it must be a"
                f" {cls.__module__}.{cls.__qualname__}"
            )
        check_settings(getattr(found, "settings", NoSettings), f"{self.section}.{field}: {name}")
        return found

    def settings(self, name: str, cls: type[T]) -> T:
        """Return the settings of a part as its own record.

        Raise RecipeError for a setting that it does not have, and for what the record raises when it checks itself.
        """
        given = {key: value for key, value in self.parts.get(name, {}).items() if key != FROM}
        return read_settings(cls, given, where=f"{self.section}.parts.{name}")

    def check_used(self, used: Iterable[str], own: Iterable[str] = (), settled: Iterable[str] = ()) -> None:
        """Raise RecipeError for settings of a part that the section does not use, or that would replace Pedigree's.

        `own` are the names of Pedigree's parts that have no settings here, and `settled` of those that have some.
        """
        used, own, settled = set(used), set(own), set(settled)
        for name, given in self.parts.items():
            if name not in used:
                raise RecipeError(f"{self.section}.parts.{name}: without effect; the section uses no part of this name")
            if not isinstance(given, Mapping):
                raise RecipeError(f"{self.section}.parts.{name}: expected a mapping, got {given!r}")
            if name in own or (name in settled and FROM in given):
                raise RecipeError(
                    f"{self.section}.parts.{name}: {name!r} is a part of Pedigree's; name yours otherwise"
                )


def check_settings(cls: Any, who: str) -> None:
    """Raise RecipeError unless the settings of a part are a frozen dataclass with a default for each field."""
    if not is_dataclass(cls) or not getattr(cls, "__dataclass_params__").frozen:  # noqa: B009 - no type declares it
        raise RecipeError(f"{who}: its settings are {cls!r}; they must be a frozen dataclass")
    if absent := [one.name for one in fields(cls) if one.default is MISSING is one.default_factory]:
        raise RecipeError(f"{who}: its setting {absent[0]!r} has no default")


def read_settings(cls: type[T], given: Mapping[str, Any], *, where: str) -> T:
    """Return the settings of a part as its record. Whatever the user's record raises becomes a RecipeError."""
    try:
        with running(where):
            return read_record(cls, given, where=where)
    except (RecipeError, PartFailed):
        raise
    except (Exception, SystemExit) as error:  # whatever a record of the user's raises when it checks itself
        raise RecipeError(f"{where}: {type(error).__name__}: {error}") from error


@contextmanager
def named(who: str, doing: str, *, trains: bool = False) -> Iterator[None]:
    """Context manager in which any error of a part's code is raised as PartFailed, under the part's name.

    The code is held to the bounds of the job (`training.contract.parts.contained`); with `trains` it may take hours.
    """
    try:
        with running(who, trains=trains):
            yield
    except (RecipeError, DataError, RefusedInput, StopRequested):
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise PartFailed(f"{who} {doing}: {type(error).__name__}: {error}") from error


def guarded(who: str, doing: str, call: Callable[..., T]) -> Callable[..., T]:
    """Return a function like `call` whose errors are raised as PartFailed, under the part's name."""

    def called(*arguments: Any, **more: Any) -> T:
        with named(who, doing):
            return call(*arguments, **more)

    return called


def place_of(parts: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Return where a part is by its settings, or else its name. Raise RecipeError for a place that is no text."""
    place = parts.get(name, {}).get(FROM, name)
    if not isinstance(place, str):
        raise RecipeError(f"parts.{name}.{FROM}: expected str, got {place!r:.40}")
    return place


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
    for name, place in _entry_points(f"{GROUP}{kind}", tuple((folder, _changed(folder)) for folder in sys.path)):
        if found.setdefault(name, place) != place:
            raise RecipeError(f"{name!r} is registered twice in {GROUP}{kind}: {found[name]}, {place}")
    return found


@lru_cache(maxsize=64)
def _entry_points(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[tuple[str, str], ...]:
    """Return the names and places of a group's entry points; `folders` are those of `sys.path` with their times.

    Looking for them opens a file of each of some 300 packages, and a recipe asks several times for each of its suites.
    """
    return tuple((entry.name, entry.value) for entry in entry_points(group=group))


def _changed(folder: str) -> int:
    """The time of a folder's last change in ns, which an installed package moves; 0 if there is no such folder."""
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=256)
def _loaded(place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        with running(place):
            part: Any = import_module(module)
            for word in name.split("."):
                part = getattr(part, word)
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"{place!r}: no module {error.name!r}; install its package into Pedigree's environment, or put its folder"
            " on PYTHONPATH"
        ) from None
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it is imported
        raise RecipeError(f"{place!r} cannot be imported: {type(error).__name__}: {error}") from error
    return part

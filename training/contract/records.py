"""Read typed records from plain data. Errors give the field's path, the value, and what would be right.

Standard library only, so that a bare GPU node can read a job.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

T = TypeVar("T")

SIMILAR, SIMILAR_WORD = 0.6, 0.75  # least similarity, from 0 to 1, of a known name or one of its words to a name

Uri = Annotated[str, "URI"]  # type of a field that names a file or a generated source


class RecipeError(ValueError):
    """Values in a recipe, profile or job cannot be used; each of `problems` gives a place and what would be right."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def in_file(self, name: str) -> RecipeError:
        """Return this error with the file's name before it: on the same line, or above a list of several problems."""
        if len(self.problems) == 1:
            return RecipeError(f"{name}: {self}")
        return RecipeError(f"{name}: {len(self.problems)} mistakes", *(f"  {problem}" for problem in self.problems))


def read_record(cls: type[T], data: Any, *, where: str = "") -> T:
    """Return the frozen dataclass `cls` made from plain `data`, as YAML or JSON gives it.

    Unknown keys, missing keys and values of the wrong type raise RecipeError with the dotted path of the field. `where`
    is the path of the record itself.
    """
    problems: list[str] = []
    try:
        record = _read_record(cls, data, where, problems)
    except RecipeError as error:
        problems.extend(error.problems)
    else:
        if not problems:
            return record
    raise RecipeError(*dict.fromkeys(problems))


def all_of(*checks: Callable[[], object]) -> None:
    """Call every check. If any raises RecipeError, raise one RecipeError that lists all their problems."""
    problems: list[str] = []
    for check in checks:
        try:
            check()
        except RecipeError as error:
            problems.extend(error.problems)
    if problems:
        raise RecipeError(*dict.fromkeys(problems))


def unknown_names(where: str, names: Any, known: Iterable[str]) -> list[str]:
    """Return a sentence for each of the names that is not known, with the known name that is most similar.

    `names` is one name, a list of them, or a mapping whose keys are names.
    """
    one = isinstance(names, str)
    named = [(where, names)] if one else [(f"{where}[{place}]", name) for place, name in enumerate(names)]
    named = [(where, name) for name in names] if isinstance(names, dict) else named
    listed, words = ", ".join(map(repr, known := tuple(known))), [str(one) for one in known]
    return [
        f"{place}: {name!r} is not one of {listed}" + (f";{meant}" if (meant := did_you_mean(str(name), words)) else "")
        for place, name in named
        if name not in known
    ]


def check_names(record: Any, where: str = "") -> None:
    """Raise RecipeError that lists all names in a record's fields that are not known.

    The class says in `NAMES` what its fields may name: {field: known names}.
    """
    wrong = [
        problem
        for field, known in type(record).NAMES.items()
        for problem in unknown_names(_join(where, field), getattr(record, field), known)
    ]
    if wrong:
        raise RecipeError(*wrong)


def check_above_zero(record: Any, where: str, *fields: str) -> None:
    """Raise RecipeError that lists which of a record's `fields` are numbers that are not above 0. None is right."""
    given = ((_join(where, name), getattr(record, name)) for name in fields)
    wrong = [
        f"{place}={value}; above 0, or null, is right" for place, value in given if value is not None and value <= 0
    ]
    if wrong:
        raise RecipeError(*wrong)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` did you mean X?` with the known name most similar to an unknown one; empty if none is similar.

    A name is similar as a whole, or by one of its words or its beginning: `dedup` and `tokns` are taken for
    `deduplicated_documents` and `token_shards`.
    """
    similar = {one: by for one in known if (by := _similarity(one, name))}
    return f" did you mean `{max(similar, key=similar.__getitem__)}`?" if similar else ""


def _similarity(known: str, name: str) -> tuple[float, ...]:
    """Return how similar a known name is by whole or word, and how similar by whole alone; empty if it is not."""
    words = [part for word in known.replace("-", "_").split("_") for part in (word, word[: len(name)]) if len(part) > 2]
    whole, *parts = (difflib.SequenceMatcher(None, one, name).ratio() for one in (known, *words))
    similar = [whole] * (whole >= SIMILAR) + [part for part in parts if part >= SIMILAR_WORD]
    return (max(similar), whole) if similar else ()


def no_such(told: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence about an unknown name: `told`, the known name that is most similar, and all known names."""
    known = list(known)
    return f"{told};{did_you_mean(name, known)} there are {', '.join(known) or 'none'}"


def _read_record(cls: type[T], data: Any, where: str, problems: list[str]) -> T:
    """Read plain data and return the record. Add mistakes to `problems`.

    Raise RecipeError if the data are so wrong that no record can be made.
    """
    if not isinstance(data, dict):
        raise RecipeError(f"{where or cls.__name__}: expected a mapping, got {data!r}")
    fields, hints, values, allowed = _fields(cls), _hints(cls), {}, getattr(cls, "NAMES", {})
    for name, value in data.items():
        if name not in fields:
            meant, known = did_you_mean(str(name), fields), ", ".join(sorted(fields))
            problems.append(f"{_join(where, str(name))}: unknown field;{meant} known fields here: {known}")
            continue
        if type(value) is hints[name] and dataclasses.is_dataclass(value):
            values[name] = value  # a record that was read for another recipe
            continue
        try:
            values[name] = _convert(hints[name], value, _join(where, name), problems)
            # Here, and not only when the record checks itself, because that needs all fields to be readable.
            problems += unknown_names(_join(where, name), values[name], known) if (known := allowed.get(name)) else ()
        except RecipeError as error:
            problems.extend(error.problems)
    absent = [name for name, field in fields.items() if name not in data and _is_required(field)]
    problems.extend(f"{_join(where, name)}: missing; it has no default" for name in absent)
    if absent or len(values) < len(data.keys() & fields.keys()):
        raise RecipeError()  # what is wrong is among the problems
    try:
        return cls(**values)
    except RecipeError as error:
        prefix = f"{where}: " if where else ""
        raise RecipeError(
            *(one if where and one.startswith(where) else f"{prefix}{one}" for one in error.problems)
        ) from None


def _read_inner(cls: type[T], data: Any, where: str, problems: list[str]) -> T:
    """Return a record inside another one; equal data in the same field are read only once and give the same object.

    Hundreds of variants of a recipe differ only in a section or two. Data are read each time if they are wrong, differ
    after being written as JSON, or may change later.
    """
    text = as_json(data) if _is_frozen(cls) else None
    if text is not None:
        with suppress(RecipeError):
            return _read_once(cls, where, text)
    return _read_record(cls, data, where, problems)


def _is_frozen(cls: Any) -> bool:
    return cls.__dataclass_params__.frozen


def as_json(data: Any) -> str | None:
    """Return plain data as JSON text; None for data that would differ after reading the text back, such as dates."""
    try:
        text = json.dumps(data)
    except (TypeError, ValueError):
        return None
    return text if json.loads(text) == data else None


@lru_cache(maxsize=4096)
def _read_once(cls: type[T], where: str, text: str) -> T:
    problems: list[str] = []
    record = _read_record(cls, json.loads(text), where, problems)
    if problems:
        raise RecipeError(*problems)
    return record


@cache
def _fields(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls)}


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the types of a record's fields. Reading them takes longer than reading a record."""
    return typing.get_type_hints(cls)


def varied(record: T, changes: Mapping[str, Any]) -> T:
    """Return a copy of a frozen record with `changes` applied to its fields.

    For a field that holds a record, a mapping changes that record field by field. Any other value replaces the field.
    Every changed record checks itself again.
    """
    values = {name: _varied(getattr(record, name), value) for name, value in changes.items()}
    return dataclasses.replace(record, **values)  # pyrefly: ignore[bad-specialization]  # a dataclass


def _varied(old: Any, change: Any) -> Any:
    return varied(old, change) if isinstance(change, Mapping) and dataclasses.is_dataclass(old) else change


def uris_in(value: Any) -> Iterator[str]:
    """Yield every URI in a record, or in records inside plain data: the values of the fields of type `Uri`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = _uri_fields(type(value))
        for field in dataclasses.fields(value):
            inside = getattr(value, field.name)
            if field.name in named:
                yield from filter(None, (inside,) if isinstance(inside, str) else inside or ())
            else:
                yield from uris_in(inside)
    elif isinstance(value, dict):
        for item in value.values():
            yield from uris_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from uris_in(item)


@cache
def _uri_fields(cls: type) -> frozenset[str]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return frozenset(name for name, hint in hints.items() if Uri in (hint, *get_args(hint)))


def write_record(record: Any) -> Any:
    """Return plain data (dict, list, str, int, float, bool, None) that `read_record` reads back to an equal record."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {field.name: write_record(getattr(record, field.name)) for field in dataclasses.fields(record)}
    if isinstance(record, dict):
        return {key: write_record(value) for key, value in record.items()}
    if isinstance(record, (tuple, list)):
        return [write_record(value) for value in record]
    return record


def differing_from_defaults(record: Any) -> Any:
    """Return a record as plain data with only the fields whose values differ from their defaults.

    Fingerprints are made of this data, so a new field whose default means the old behaviour changes no fingerprint.
    """
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        kept = {}
        for field in dataclasses.fields(record):
            value = getattr(record, field.name)
            if _is_required(field) or value != _default(field):
                kept[field.name] = differing_from_defaults(value)
        return kept
    if isinstance(record, dict):
        return {key: differing_from_defaults(value) for key, value in record.items()}
    if isinstance(record, (tuple, list)):
        return [differing_from_defaults(value) for value in record]
    return record


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Return one line for each field in which two pieces of plain data differ, such as `filter.min_words: 50 → 60`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted(set(old) | set(new))
            for line in differences(old.get(key, _ABSENT), new.get(key, _ABSENT), _join(where, str(key)))
        ]
    return [] if old == new else [f"{where}: {_shown(old)} → {_shown(new)}"]


_ABSENT = object()


def _shown(value: Any) -> str:
    return "(not set)" if value is _ABSENT else repr(value)


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    assert field.default_factory is not dataclasses.MISSING
    return field.default_factory()


def _convert(hint: Any, value: Any, where: str, problems: list[str]) -> Any:
    """Return the value as the type `hint`; problems that leave a usable value are added to `problems`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, where, problems)
    if origin is Literal:
        if isinstance(value, str) and value not in arguments:
            raise RecipeError(*unknown_names(where, value, arguments))
        if value not in arguments:
            raise RecipeError(f"{where}: expected {' or '.join(map(repr, arguments))}, got {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise RecipeError(f"{where}: expected a list, got {value!r}")
        named = [(f"{where}[{number}]", item) for number, item in enumerate(value)]
        return tuple(_convert_all(arguments[0], named, problems))
    if origin is dict:
        if not isinstance(value, dict):
            raise RecipeError(f"{where}: expected a mapping, got {value!r}")
        named = [(_join(where, str(key)), item) for key, item in value.items()]
        return dict(zip(map(str, value), _convert_all(arguments[1], named, problems), strict=True))
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else _read_inner(hint, value, where, problems)
    return _convert_scalar(hint, value, where)


def _convert_all(hint: Any, named: list[tuple[str, Any]], problems: list[str]) -> list[Any]:
    """Convert a list of (field path, value) to the type `hint`.

    RecipeError names all values that cannot be converted.
    """
    converted: list[Any] = []
    wrong: list[str] = []
    for place, value in named:
        try:
            converted.append(_convert(hint, value, place, problems))
        except RecipeError as error:
            wrong.extend(error.problems)
    if len(converted) < len(named):  # also if all that is wrong is among `problems` already
        raise RecipeError(*wrong)
    return converted


def _convert_union(arguments: tuple[Any, ...], value: Any, where: str, problems: list[str]) -> Any:
    if value is None and type(None) in arguments:
        return None
    if value == "" and type(None) in arguments:
        raise RecipeError(f"{where}: an empty text; null, or nothing, is right")
    chosen = [argument for argument in arguments if argument is not type(None)]
    words = [word for argument in chosen if get_origin(argument) is Literal for word in get_args(argument)]
    if value in words:
        return value
    _check_words(chosen, words, value, where)
    (other,) = (argument for argument in chosen if get_origin(argument) is not Literal)
    return _convert(other, value, where, problems)


def _check_words(chosen: list[Any], words: list[Any], value: Any, where: str) -> None:
    """Raise RecipeError for a value that is none of the words, and nothing else that the field may have."""
    others = [argument for argument in chosen if get_origin(argument) is not Literal]
    if words and not others and isinstance(value, str):
        raise RecipeError(*unknown_names(where, value, words))
    if words and (not others or isinstance(value, str)):
        named = ["a list" if get_origin(other) is tuple else other.__name__ for other in others]
        expected = " or ".join([*named, *map(repr, words)])
        raise RecipeError(f"{where}: expected {expected}, got {value!r}")


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if hint is float and isinstance(value, (int, float, str)):
        check_finite(value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, str):
        # YAML 1.1 reads `3e-4` as text; a person means the number.
        try:
            return float(value)
        except ValueError:
            pass
    if hint in (int, float, str, bool) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise RecipeError(f"{where}: expected {hint.__name__}, got {value!r}")
    return value


def check_finite(value: Any, where: str) -> None:
    """Raise RecipeError if a text such as `nan` or `1e999`, or a number, is no finite float."""
    try:
        is_finite = math.isfinite(float(value))
    except OverflowError:
        is_finite = False
    except ValueError:  # of another text
        return
    if not is_finite:
        raise RecipeError(f"{where}: {str(value)[:40]} is no finite number")

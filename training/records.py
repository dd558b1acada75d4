"""Read typed records from plain data. Errors give the field's path, the value, and what would be right.

Standard library only, so that a bare GPU node can read a job.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

T = TypeVar("T")

Uri = Annotated[str, "URI"]  # type of a field that names a file or a generated source; empty means none


class RecipeError(ValueError):
    """A value in a recipe, profile or job cannot be used; the message gives its place and what would be right."""


def formerly(value: Any, *, default: Any = None) -> Any:
    """Define a dataclass field that may be None and for which earlier editions wrote `value` instead of None.

    `read_record` reads this value as None, and `differing_from_defaults` writes None as this value. So recipes and
    records by earlier editions keep their meaning and their fingerprints.
    """
    return dataclasses.field(default=default, metadata={"formerly": value})


def read_record(cls: type[T], data: Any, *, where: str = "") -> T:
    """Return the frozen dataclass `cls` made from plain `data`, as YAML or JSON gives it.

    Unknown keys, missing keys and values of the wrong type raise RecipeError with the dotted path of the field. `where`
    is the path of the record itself.
    """
    if not isinstance(data, dict):
        raise RecipeError(f"{where or cls.__name__}: expected a mapping, got {data!r}")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # pyrefly: ignore[bad-argument-type]  # a dataclass
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise RecipeError(f"{_join(where, unknown[0])}: unknown field; known fields here: {', '.join(sorted(fields))}")
    hints = typing.get_type_hints(cls)
    values = {name: _read_field(fields[name], hints[name], value, _join(where, name)) for name, value in data.items()}
    missing = [name for name, field in fields.items() if name not in values and _is_required(field)]
    if missing:
        raise RecipeError(f"{_join(where, missing[0])}: missing; it has no default")
    try:
        return cls(**values)
    except RecipeError as error:
        prefix = f"{where}: " if where and not str(error).startswith(where) else ""
        raise RecipeError(f"{prefix}{error}") from None


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
                yield from filter(None, [inside] if isinstance(inside, str) else inside)
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
    """Return the names of the fields of type `Uri` or `tuple[Uri, ...]`."""
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
                known = field.metadata.get("formerly") if value is None else value
                kept[field.name] = differing_from_defaults(known)
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


def _read_field(field: dataclasses.Field[Any], hint: Any, value: Any, where: str) -> Any:
    read = _convert(hint, value, where)
    return None if "formerly" in field.metadata and read == field.metadata["formerly"] else read


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            raise RecipeError(f"{where}: {value!r} is not one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise RecipeError(f"{where}: expected a list, got {value!r}")
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise RecipeError(f"{where}: expected a mapping, got {value!r}")
        return {str(key): _convert(arguments[1], item, _join(where, str(key))) for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else read_record(hint, value, where=where)
    return _convert_scalar(hint, value, where)


def _convert_union(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    chosen = [argument for argument in arguments if argument is not type(None)]
    words = [word for argument in chosen if get_origin(argument) is Literal for word in get_args(argument)]
    if value in words:
        return value
    (other,) = (argument for argument in chosen if get_origin(argument) is not Literal)
    if words and isinstance(value, str):
        raise RecipeError(f"{where}: expected {other.__name__} or {' or '.join(map(repr, words))}, got {value!r}")
    return _convert(other, value, where)


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
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

"""The settings of a cell (an asset in a partition) that its fingerprint covers. Does not import Dagster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.contract.records import differing_from_defaults
from training.contract.stage import Stage


def asked_settings(stage: Stage, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `settings` that the fingerprint covers: the values that differ from their defaults.

    A local file is identified by its checksum instead of its path.
    """
    files = settings.get("data", {})
    return replaced(without_places(stage, settings), {uri: f"sha256:{files[uri]}" for uri in files if _is_local(uri)})


def without_places(stage: Stage, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same without the fields that the stage declares as locations or context, files by their paths."""
    asked = {name: differing_from_defaults(section) for name, section in settings.items() if name not in stage.context}
    for place in stage.locations:
        _remove(asked, place)
    return asked


def _remove(value: Any, place: tuple[str, ...]) -> None:
    """Remove the field at the path `place` of keys from nested plain data, in place.

    A list on the path stands for all its elements.
    """
    if isinstance(value, list):
        for item in value:
            _remove(item, place)
    elif isinstance(value, dict) and len(place) == 1:
        value.pop(place[0], None)
    elif isinstance(value, dict) and place[0] in value:
        _remove(value[place[0]], place[1:])


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")


def replaced(value: Any, names: Mapping[str, str]) -> Any:
    """Return a copy of nested plain data with strings and keys replaced as `names` says.

    Strings and keys that are keys of `names` are replaced by its values.
    """
    if isinstance(value, dict):
        return {names.get(key, key): replaced(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replaced(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value

"""Bad values for every field of a recipe or profile, found by walking the definitions of its records."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from assets.state.recipe_folders import load_recipe
from resources.compute.kubernetes import KubernetesSettings
from resources.compute.size import Size
from resources.compute.slurm import SlurmSettings
from resources.profile import Notify, Profile
from training.contract.records import Uri, write_record
from training.recipe.recipe import Recipe
from training.recipe.recipes import recipe_of

Place = tuple[str | int, ...]  # keys and positions in plain data

ADDRESSES = (
    "zebra://x",
    "kitchen://zebra",
    "kitchen://cloze?zebra=1",
    "made://x",
    "https:///x",
    "http://a b/c",
    "s3://",
)
PORTS = ("postgresql://u@h:99999/d", "postgresql://u@h:0/d")
NO_ADDRESSES = {
    "tracking_uri": ("zebra://x", "http://", "http://a b/", *PORTS),
    "dagster_storage": (
        *("http://h/d", "postgresql://u@h", "postgresql://u:p@h/d", "postgresql://u@h h/d", "postgresql://u@h/d#e"),
        *("postgresql://u@h/d?a=1&a=2", *PORTS),
    ),
    "webhook": ("zebra://x", "http://a b/", "https://h:99999/x"),
    "ui": ("zebra://x", "http://a b/", "https://h:99999/x"),
}
"""Of fields of a profile."""
NO_SCALARS = ([["zebra"]], {"zebra": 1}, [], {})
NO_NUMBERS = (10**30, -(10**30), float("nan"), float("inf"), "zebra", "", *NO_SCALARS)
NO_TEXTS = ("", " ", 7, True, "a\x00b", "a\x1b[2Jb", "\udc80", "z" * 10**6, *NO_SCALARS)
NO_LISTS = ("zebra", 7, {"zebra": 1})
NO_MAPPINGS = ("zebra", 7, ["zebra"])
BAD: dict[Any, tuple[Any, ...]] = {
    int: (-1, 2**63, 0.5, *NO_NUMBERS),
    float: (-1.0, 1e300, "1e300", "nan", *NO_NUMBERS),
    str: NO_TEXTS,
    bool: ("zebra", 2, *NO_SCALARS),
    Uri: (*NO_TEXTS, *ADDRESSES),
}
MAY = {  # what is right, and why
    "description": "a recipe need not describe itself",
    "sft.data.0.end_marker": "an answer may end in white space",
    "preferences.data.0.end_marker": "an answer may end in white space",
    "model.window_pattern": "two layers may be of one kind",
    "pretrain.min_loss_fall": "a gate may let a loss rise",
    "long_context.min_loss_fall": "a gate may let a loss rise",
    "long_context.max_short_rise": "a gate may ask for a fall",
}


def of_recipes() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each bad recipe's name, `FIELD=VALUE` over the kitchen's, and what reads it."""
    base = write_record(load_recipe("kitchen"))
    for place, hint, now in leaves(Recipe, base):
        named = ".".join(map(str, place))
        for value in () if named in MAY else bad(hint, now):
            yield f"{named}={value!r:.40}", lambda place=place, value=value: recipe_of(_with(base, place, value))


def of_profiles() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each bad profile's name and its content."""
    sections = (
        (Profile, (), {}),
        (Size, ("default",), {}),
        (Size, ("stages", "base_model"), {}),
        (SlurmSettings, ("parts", "slurm"), {}),
        (KubernetesSettings, ("parts", "kubernetes"), {"image": "a/b@sha256:1"}),
        (Notify, ("notify",), {}),
    )
    for cls, where, needed in sections:
        for name, hint in get_type_hints(cls, include_extras=True).items():
            for value in () if name in MAY else (*bad(hint, None), *bad_inside(hint), *NO_ADDRESSES.get(name, ())):
                inside: Any = {**needed, name: value}
                for key in reversed(where):
                    inside = {key: inside}
                uses = {"default": {"backend": where[1]}} if where[:1] == ("parts",) else {}
                yield f"{'.'.join((*where, name))}={value!r:.40}", {"name": "mine", **uses, **inside}


def bad_inside(hint: Any) -> tuple[Any, ...]:
    """Return lists and mappings with one bad value, for a field that holds a list or a mapping."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        return tuple([one] for one in bad(inner[0], None))
    return tuple({"zebra": one} for one in bad(inner[1], None)) if origin is dict else ()


def bad(hint: Any, now: Any) -> tuple[Any, ...]:
    """Return bad values for a field of this type that holds `now`."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not types.NoneType]
        found = tuple(one for part in parts for one in bad(part, now) if type(one) not in {*parts} - {part})
        return tuple(one for one in found if one != [] or all(get_origin(part) is not tuple for part in parts))
    if get_origin(hint) is Literal:
        return tuple(one for one in ("zebra", *NO_TEXTS) if one not in get_args(hint))
    if get_origin(hint) is tuple:
        repeats = now and isinstance(now[0], (str, dict)) and get_args(hint)[0] is not float
        return (*NO_LISTS, [now[0], now[0]]) if repeats else NO_LISTS
    return NO_MAPPINGS if get_origin(hint) is dict else BAD.get(hint, ())


def leaves(
    hint: Any, value: Any, place: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    """Yield the place, the type and the value of each field in a record that is given as plain data."""
    record = next((one for one in (hint, *get_args(hint)) if is_dataclass(one)), None)
    if record is not None and get_origin(hint) is not tuple:
        hints = get_type_hints(record, include_extras=True)
        for field in fields(record) if isinstance(value, dict) else ():
            yield from leaves(hints[field.name], value[field.name], (*place, field.name))
        return
    yield place, hint, value
    if get_origin(hint) is tuple and value:
        yield from leaves(get_args(hint)[0], value[0], (*place, 0))


def _with(data: Any, place: Place, value: Any) -> Any:
    changed = at = copy.deepcopy(data)
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    return changed

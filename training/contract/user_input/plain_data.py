"""Read YAML and JSON that a person hands in: recipes, profiles, task files, and the settings of a stranger's model.

Both formats let a file say one thing and be read as another: a key may stand twice, an alias may stand for millions of
values, `no` may be a text or a truth value. Each such place is refused with its line and its key. What is read is plain
data of a bounded size, in which every number is finite.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.contract.records import RecipeError
from training.contract.secrets import masked, yaml_problem

MOST_BYTES = 1 << 20  # of a YAML file; the longest recipe here has 24 KB
MOST_VALUES = 200_000  # of a YAML file with its aliases written out; the longest recipe here has 1,100
MOST_DEPTH = 50
MOST_DIGITS = 40  # of a number; transformers writes 10^30 where a tokenizer has no longest text
SHOWN_CHARACTERS, SHOWN_PLACE = 40, 80

CORE = "tag:yaml.org,2002:"
STRUCTURES = {None, "!", CORE + "map", CORE + "seq"}  # tags that change nothing of a mapping or a list
LONE_HALF = re.compile("[\ud800-\udfff]")
OCTAL, OTHER_BASE = re.compile(r"[-+]?0[0-7]+"), re.compile(r"[-+]?0[bx]")


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. Raise RecipeError, with file, line and key, for anything that is wrong."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{path.name}: cannot be read: {error.strerror}") from None
    value = yaml_value(data, path.name)
    if not isinstance(value, dict):
        raise RecipeError(f"{path.name}: expected a mapping of fields, got {type(value).__name__}")
    return value


def yaml_value(data: bytes, name: str) -> Any:
    """Return the value of a YAML file with these bytes. Raise RecipeError, with `name`, for anything that is wrong."""
    import yaml

    if len(data) > MOST_BYTES:
        raise RecipeError(f"{name}: more than {MOST_BYTES >> 20} MiB, the most that a file of settings may have")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{name}: not UTF-8 from byte {error.start} on; save it as UTF-8") from None
    try:
        return _YamlValue(getattr(yaml, "CSafeLoader", yaml.SafeLoader)).of(text)
    except RecipeError as error:
        raise error.in_file(name) from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{name}: not readable as YAML: {_explained(error, text)}") from None
    except (ValueError, OverflowError):  # of PyYAML's own parser, where it was built without libyaml
        raise RecipeError(f"{name}: not readable as YAML: an escape for a character that does not exist") from None


def _explained(error: Any, text: str) -> str:
    """Return what is wrong with a YAML text, by PyYAML's own parser, whose sentences are the same on every machine."""
    import yaml

    try:
        _YamlValue(yaml.SafeLoader).of(text)
    except yaml.YAMLError as own:
        return yaml_problem(own)
    except (ValueError, OverflowError):  # of what libyaml refused and this parser takes, such as half of a pair
        pass
    return yaml_problem(error)


@dataclass(slots=True)
class _Open:
    """A mapping or list that is being read: its value, the key that waits for a value, and how much it holds."""

    value: Any
    where: str
    anchor: str | None = None
    key: Any = None
    has_key: bool = False
    size: int = 1
    lines: dict[str, int] = field(default_factory=dict)  # of a mapping's keys
    merged: list[Any] = field(default_factory=list)  # what stands under `<<`

    def place(self) -> str:
        """Return the path of the next value."""
        if isinstance(self.value, list):
            return f"{self.where}[{len(self.value)}]"
        return f"{self.where}.{self.key}" if self.where else str(self.key)


class _YamlValue:
    """Makes the value of one YAML text from the events of a parser, so that nothing is made before it is counted."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}  # value and size of what an alias may stand for
        self._values = 0
        self._found: list[Any] = []

    def of(self, text: str) -> Any:
        """Return the value; None if the text holds none."""
        import yaml

        for event in yaml.parse(text, Loader=self._loader):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent) and self._found:
                raise RecipeError(f"line {line}: a second document begins; a file holds one")
            if isinstance(event, yaml.AliasEvent):
                self._put(*self._alias(event.anchor, line), line)
            elif isinstance(event, yaml.ScalarEvent):
                value = _scalar(event, lambda: f"line {line}{self._said()}")  # noqa: B023 - called at once
                self._note(event.anchor, value, 1)
                self._put(value, 1, line, is_merge=event.value == "<<" and event.implicit[0])
            elif isinstance(event, yaml.CollectionStartEvent):
                self._begin(event, line, {} if isinstance(event, yaml.MappingStartEvent) else [])
            elif isinstance(event, yaml.CollectionEndEvent):
                self._end(line)
        return self._found[0] if self._found else None

    def _said(self) -> str:
        """Return the place of the next value, to stand behind the line; empty for the file as a whole or a key."""
        if not self._open or (isinstance(self._open[-1].value, dict) and not self._open[-1].has_key):
            return ""
        place = masked(self._open[-1].place())
        return f", {place}" if len(place) <= SHOWN_PLACE else f", {place[:SHOWN_PLACE]}…"

    def _begin(self, event: Any, line: int, value: Any) -> None:
        if event.tag not in STRUCTURES:
            raise RecipeError(f"line {line}{self._said()}: the tag {event.tag} is not read; leave it out")
        if len(self._open) == MOST_DEPTH:
            raise RecipeError(f"line {line}{self._said()}: nested more than {MOST_DEPTH} deep")
        inside = self._open[-1] if self._open else None
        if inside is not None and isinstance(inside.value, dict) and not inside.has_key:
            raise RecipeError(f"line {line}: a mapping or list as a key; a key is one word")
        self._open.append(_Open(value, inside.place() if inside else "", event.anchor))

    def _end(self, line: int) -> None:
        done = self._open.pop()
        for base in done.merged:
            for key, value in base.items():
                done.value.setdefault(key, value)
        self._note(done.anchor, done.value, done.size)
        self._put(done.value, done.size, line, is_counted=True)

    def _alias(self, anchor: str, line: int) -> tuple[Any, int]:
        if anchor not in self._anchors:
            kind = "holds itself" if any(one.anchor == anchor for one in self._open) else "is not defined before it"
            raise RecipeError(f"line {line}{self._said()}: the alias *{anchor} {kind}")
        return self._anchors[anchor]

    def _note(self, anchor: str | None, value: Any, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = value, size

    def _put(self, value: Any, size: int, line: int, *, is_merge: bool = False, is_counted: bool = False) -> None:
        """Add a finished value to the mapping or list that is open, or make it the file's value.

        `size` counts the value and all values in it. With `is_counted`, `_values` has the inner ones already.
        """
        self._values += 1 if is_counted else size
        if self._values > MOST_VALUES:
            raise RecipeError(
                f"line {line}{self._said()}: more than {MOST_VALUES:,} values with all aliases written out"
            )
        if not self._open:
            self._found.append(value)
            return
        inside = self._open[-1]
        inside.size += size
        if isinstance(inside.value, list):
            inside.value.append(value)
        elif not inside.has_key:
            self._take_key(inside, value, line, is_merge=is_merge)
        elif inside.key is _MERGE:
            inside.merged += self._bases(value, line)
            inside.has_key = False
        else:
            inside.value[inside.key] = value
            inside.has_key = False

    def _take_key(self, inside: _Open, key: Any, line: int, *, is_merge: bool) -> None:
        if isinstance(key, (dict, list)) or key is None:
            raise RecipeError(f"line {line}: {key!r:.{SHOWN_CHARACTERS}} as a key; a key is one word")
        if first := inside.lines.get(str(key)):
            place = masked(f"{inside.where}.{key}" if inside.where else str(key))
            raise RecipeError(f"line {line}: {place} is given twice, first in line {first}; leave one of them out")
        inside.lines[str(key)] = line
        inside.key, inside.has_key = (_MERGE if is_merge else key), True

    def _bases(self, value: Any, line: int) -> list[Any]:
        bases = value if isinstance(value, list) else [value]
        if not all(isinstance(one, dict) for one in bases):
            raise RecipeError(f"line {line}: `<<` takes a mapping or a list of mappings")
        return bases


class _Merge:
    """The key `<<`."""

    def __str__(self) -> str:
        return "<<"


_MERGE = _Merge()


# Words without quotes


def _scalar(event: Any, where: Callable[[], str]) -> Any:
    """Return the value of a word or a text. `where()` is its place, for RecipeError if it has two meanings."""
    text: str = event.value
    if "\0" in text or LONE_HALF.search(text):
        raise RecipeError(f"{where()}: U+0000 or half of a surrogate pair, which no text may hold")
    if event.tag not in (None, "!", CORE + "str"):
        raise RecipeError(f"{where()}: the tag {event.tag} is not read; leave it out")
    if event.tag is not None or not event.implicit[0]:
        return text
    try:
        return _word(text)
    except _TwoMeanings as error:
        raise RecipeError(f"{where()}: {masked(text[:SHOWN_CHARACTERS])} {error}") from None


class _TwoMeanings(Exception):
    """A word may be read in two ways; the message says which, and what to write."""


def _word(text: str) -> Any:
    """Return what a word without quotes stands for: a truth value, nothing, a number, or the text itself."""
    kind, lower = _kind(text), text.lower()
    if kind == "null":
        return None
    if kind == "bool":
        if lower in ("true", "false"):
            return lower == "true"
        meant = "true" if lower in ("yes", "on") else "false"
        raise _TwoMeanings(f"may mean {meant} or the word; write {meant}, or '{text}' in quotes")
    if kind == "timestamp":
        raise _TwoMeanings(f"may mean a date or a text; write '{text}' in quotes")
    if kind not in ("int", "float"):
        return text
    if ":" in text:
        raise _TwoMeanings(f"may mean a number to base 60 or a text; write the number, or '{text}' in quotes")
    if len(text) > MOST_DIGITS:
        raise _TwoMeanings(f"… is a number of more than {MOST_DIGITS} digits")
    plain = text.replace("_", "")
    if plain != text or OTHER_BASE.match(plain):
        raise _TwoMeanings(f"may mean a number or a text; write the number in digits alone, or '{text}' in quotes")
    if OCTAL.fullmatch(plain):
        raise _TwoMeanings(f"may mean {int(plain, 8)}, {int(plain)} or a text; write the number, or '{text}' in quotes")
    return _finite(plain) if kind == "float" else int(plain)


def _kind(text: str) -> str:
    """Return the kind of a word by YAML 1.1, such as `int`; empty for a text."""
    from yaml import SafeLoader

    kinds = SafeLoader.yaml_implicit_resolvers.get(text[:1], ())
    return next((tag.removeprefix(CORE) for tag, pattern in kinds if pattern.match(text)), "")


def _finite(text: str) -> float:
    value = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(value):
        raise _TwoMeanings("is no finite number")
    return value


# JSON


def json_value(data: bytes | str, name: str) -> Any:
    """Return the value of a JSON text from a stranger. Raise RecipeError, with `name`, for anything that is wrong.

    Refused are a key that stands twice, a number that is not finite or has thousands of digits, half of a surrogate
    pair, and values in more than `MOST_DEPTH` others.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_object, **NUMBERS)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecipeError as error:
        raise error.in_file(name) from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{name}: not UTF-8 from byte {error.start} on; save it as UTF-8") from None
    except UnicodeEncodeError:
        raise RecipeError(f"{name}: holds half of a surrogate pair, which is no character") from None
    except RecursionError:
        raise RecipeError(f"{name}: nested more than {MOST_DEPTH} deep") from None
    except json.JSONDecodeError as error:
        raise RecipeError(f"{name}: not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    if _is_deeper(value, MOST_DEPTH):
        raise RecipeError(f"{name}: nested more than {MOST_DEPTH} deep")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise RecipeError(f"{masked(twice)[:SHOWN_CHARACTERS]!r} is given twice in one object")
    return found


def _constant(word: str) -> Any:
    raise RecipeError(f"{word} is no finite number")


def _int(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise RecipeError(f"{text[:SHOWN_CHARACTERS]}… is a number of more than {MOST_DIGITS} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RecipeError(f"{text[:SHOWN_CHARACTERS]} is no finite number")
    return value


NUMBERS: Any = {"parse_constant": _constant, "parse_float": _float, "parse_int": _int}


def _is_deeper(value: Any, most: int) -> bool:
    """Whether a value lies in more than `most` others."""
    level: Iterable[Any] = [value]
    for _ in range(most + 1):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterator[Any]:
    yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()

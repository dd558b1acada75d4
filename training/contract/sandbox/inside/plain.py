"""Values as JSON between the two sides of an examination: plain data by value, everything else by a number.

A subclass of a plain type becomes the plain type, so that what arrives has the comparisons of Python and not its own.
"""

from __future__ import annotations

import builtins
import sys
from collections import deque
from collections.abc import Callable
from importlib import import_module

TYPE_CHECKING = False  # typing's own import would delay each program
if TYPE_CHECKING:
    from typing import Any

_SMALL = 1 << 62  # whole numbers beyond are sent in hexadecimal, which has no limit of digits
_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_NUMBERS = {"Decimal": "decimal", "Fraction": "fractions"}  # class and module, imported where there is one
_BYTES: dict[str, type] = {"bytes": bytes, "bytearray": bytearray}


def shown(text: str) -> str:
    """Return a text that a stranger chose as one printable line: control and format signs are escaped."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def encoded(value: Any, keep: Callable[[Any], int]) -> Any:
    """Return a value in JSON's types. `keep` gives the number of a value that is no plain data."""
    if value is None or value is True or value is False or isinstance(value, (float, str)):
        return value
    if isinstance(value, int):
        return int(value) if -_SMALL < value < _SMALL else {"is": "int", "of": hex(value)}
    if isinstance(value, list):
        return [encoded(one, keep) for one in value]
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return {"is": name, "of": [encoded(one, keep) for one in value]}
    if isinstance(value, dict):
        return {"is": "dict", "of": [[encoded(key, keep), encoded(one, keep)] for key, one in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {"is": "bytes" if isinstance(value, bytes) else "bytearray", "of": value.hex()}
    if isinstance(value, complex):
        return {"is": "complex", "of": [value.real, value.imag]}
    if isinstance(value, range):
        return {"is": "range", "of": [encoded(one, keep) for one in (value.start, value.stop, value.step)]}
    for name, module in _NUMBERS.items():
        if module in sys.modules and isinstance(value, getattr(sys.modules[module], name)):
            return {"is": name, "of": str(value)}
    if isinstance(value, type) and vars(builtins).get(value.__name__) is value:
        return {"is": "type", "of": value.__name__}
    return {"is": "kept", "of": keep(value)}


def decoded(given: Any, find: Callable[[int], Any]) -> Any:
    """Return the value that JSON stands for. `find` returns what stands for a number. Raise ValueError for others."""
    if given is None or isinstance(given, (bool, int, float, str)):
        return given
    if isinstance(given, list):
        return [decoded(one, find) for one in given]
    if not isinstance(given, dict) or set(given) != {"is", "of"}:
        raise ValueError("a value that is none")
    name, of = given["is"], given["of"]
    if name in _SEQUENCES:
        return _SEQUENCES[name](decoded(one, find) for one in of)
    if name in _BYTES:
        return _BYTES[name].fromhex(of)
    if name in _NUMBERS:
        return getattr(import_module(_NUMBERS[name]), name)(of)
    makers: dict[str, Callable[[], Any]] = {
        "int": lambda: int(of, 16),
        "dict": lambda: {decoded(key, find): decoded(one, find) for key, one in of},
        "complex": lambda: complex(*map(float, of)),
        "range": lambda: range(*(decoded(one, find) for one in of)),
        "type": lambda: _type_of(of),
        "kept": lambda: find(int(of)),
    }
    if name not in makers:
        raise ValueError("a value of no known kind")
    return makers[name]()


def _type_of(name: str) -> type:
    found = vars(builtins).get(name)
    if not isinstance(found, type):
        raise ValueError("a type that Python has not")
    return found

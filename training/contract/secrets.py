"""Find secrets in texts and mask them. Standard library only.

Every text that goes to a file, a terminal or a database passes through `masked`. It recognizes secrets in addresses
(user and password before `@`, signatures and tokens after `?`), values given to `remember`, and the values of
environment variables with names such as `API_KEY`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import traceback
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import IO, Any

MASK = "***"
SHORTEST = 4  # fewest characters of a value that is masked anywhere; shorter values occur in too many harmless words
SECRET_VARIABLE = re.compile(r"(?:^|_)(?:PASSWORD|PASSWD|SECRET|TOKEN|(?:ACCESS|API|SECRET|PRIVATE)_?KEY)(?:_|$)")

_SCHEME = r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,40}:/{2,})"
# Up to the last `@` before the path: a password that should have been quoted may contain one.
_USER = re.compile(_SCHEME + r"(?P<user>[^\s/?#'\"<>]+)@")
_FIELD = re.compile(r"(?P<before>[?&;#])(?P<name>[A-Za-z0-9_.%-]+)=(?P<value>[^&;#\s'\"<>)\]}]+)")
# A user name that a person chose occurs in harmless words too; a generated user name is a credential.
_HANDED_OUT = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9])[^\s:@/]{16,}")
_ENDINGS = ("token", "signature", "secret", "password", "passwd", "credential", "credentials", "apikey", "accesskey")
_NAMES = frozenset({"key", "sig", "sas", "pwd", "pass", "auth", "accesskeyid", "awsaccesskeyid", "googleaccessid"})

_remembered: set[str] = set()


def masked(text: str) -> str:
    """Return the text with `***` in place of every known secret."""
    for value in sorted(_known(), key=len, reverse=True):
        text = text.replace(value, MASK)
    text = _USER.sub(_without_user, text)
    return _FIELD.sub(_without_value, text)


def remember(*values: str) -> None:
    """Register secret values, so that they are masked in every later text of this process."""
    _remembered.update(value for value in values if len(value) >= SHORTEST)


def remember_address(address: str) -> None:
    """Mask the secrets of an address in every later text, also where a library prints a secret without its address."""
    remember(*(part for _, part in _secret_parts(address)))
    remember(
        *(base64.b64encode(found["user"].encode()).decode() for found in _USER.finditer(address))
    )  # the form in HTTP's Authorization header
    users = (found["user"].partition(":")[0] for found in _USER.finditer(address))
    remember(*(user for user in users if _HANDED_OUT.fullmatch(user)))
    # A password that should have been quoted and was not; some libraries accept it.
    remember(*re.findall(r"://[^:/@]*:([^?]*)@", address))


def without_secrets(address: str) -> str:
    """Return an address without user, password and everything after `?` or `#`, for use in links."""
    return re.split(r"[?#]", _USER.sub(lambda found: found["scheme"], address))[0]


def secret_in(text: str) -> str:
    """Return, in words, what kind of secret the first URL with one in the text holds; empty if there is no secret."""
    return next((what for what, _ in _secret_parts(text)), "")


def yaml_problem(error: Exception) -> str:
    """Return the problem of a YAML file with its line and column, without the line's text, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return masked(" ".join(str(error).split()))
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"


def _secret_parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the value of every secret in the addresses of a text."""
    for found in _USER.finditer(text):
        user, _, password = found["user"].partition(":")
        if password:
            yield "a user and a password", password
        elif _is_web(found):
            yield "a user or a token", user
    for found in _FIELD.finditer(text) if "://" in text else ():
        if _is_secret_name(found["name"]):
            yield f"a secret in its field {found['name']}", found["value"]


def _is_web(found: re.Match[str]) -> bool:
    """Whether the part before `@` of a URL may be a token even without a password.

    This is so in HTTP and FTP addresses only, not in abfs://container@account.
    """
    return found["scheme"].lower().startswith(("http", "ftp"))


def _without_user(found: re.Match[str]) -> str:
    return f"{found['scheme']}{MASK}@" if ":" in found["user"] or _is_web(found) else found[0]


def _without_value(found: re.Match[str]) -> str:
    return f"{found['before']}{found['name']}={MASK}" if _is_secret_name(found["name"]) else found[0]


def _is_secret_name(name: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", urllib.parse.unquote(name).lower())
    return plain in _NAMES or plain.endswith(_ENDINGS)


@cache
def _names_secret(variable: str) -> bool:
    return SECRET_VARIABLE.search(variable.upper()) is not None


def _known() -> set[str]:
    """Return every known secret value, unchanged and in the encoded forms that URLs, JSON and Python write."""
    values = _remembered | {
        value for name, value in os.environ.items() if len(value) >= SHORTEST and _names_secret(name)
    }
    decoded = {urllib.parse.unquote(value) for value in values}
    written = {
        form
        for value in values | decoded
        for form in (
            value,
            urllib.parse.quote(value),
            urllib.parse.quote(value, safe=""),
            urllib.parse.quote_plus(value),
            json.dumps(value)[1:-1],
            repr(value)[1:-1],
        )
    }
    return {form for form in written if len(form) >= SHORTEST} - {"true", "false", "none", "null"}


class Masked:
    """A text stream that masks secrets in each line before it writes the line to another stream."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._line = stream, ""

    def write(self, text: str) -> int:
        """Write all complete lines to the stream; keep an incomplete last line until it ends or `flush` is called."""
        whole, newline, self._line = (self._line + text).rpartition("\n")
        if newline:
            self._stream.write(masked(whole) + newline)
        return len(text)

    def flush(self) -> None:
        """Write the incomplete last line, masked, and flush the stream."""
        waiting, self._line = self._line, ""
        self._stream.write(masked(waiting))
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def masked_output() -> Iterator[None]:
    """Context manager that masks secrets on this process's standard output and standard error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Masked(before[0]), Masked(before[1])
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


@contextmanager
def masked_errors() -> Iterator[None]:
    """Replace an error by a RuntimeError with a masked message, if its text or the text of its causes holds a secret.

    Other errors pass unchanged.
    """
    try:
        yield
    except Exception as error:
        said = "".join(traceback.format_exception(error))
        if masked(said) == said:
            raise
        raise RuntimeError(masked(f"{type(error).__name__}: {error}")) from None

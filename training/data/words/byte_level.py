"""The bytes that the tokens of a byte-level vocabulary represent."""

from __future__ import annotations


def byte_values() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary represents.

    Source: GPT-2. A printable byte of Latin-1, except the space, is represented by its own character. The other bytes
    are represented, in order, by the characters from 256 on.
    """
    own = [value for value in range(256) if chr(value).isprintable() and chr(value) != " "]
    others = [value for value in range(256) if value not in own]
    return {chr(value): value for value in own} | {chr(256 + place): value for place, value in enumerate(others)}

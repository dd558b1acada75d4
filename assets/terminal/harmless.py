"""Text of strangers on a terminal, to which it gives no commands."""

from __future__ import annotations

import unicodedata


def harmless(text: str) -> str:
    """Return the text with each control character, except newline and tab, replaced by U+FFFD."""
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text)

"""Sentences on standard error: how a command ends, other than by its result."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable

from assets.registry.refusal import LABEL_COLUMNS, LABELS


def say(lines: Iterable[str], style: str = "") -> None:
    """Print lines on standard error, the first in a style (colour) if that is a terminal.

    In a terminal each line is divided between words at its width; elsewhere it stays whole.
    """
    if not sys.stderr.isatty():
        print("\n".join(lines), file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    for number, line in enumerate(lines):
        for part in divided(line, console.width):
            console.print(Text(part, style="" if number else style), soft_wrap=True)


def divided(line: str, width: int) -> list[str]:
    """Return a line as several of at most `width` columns, divided between words; a longer word stays whole."""
    indent = " " * LABEL_COLUMNS if line[:LABEL_COLUMNS].rstrip() in LABELS else ""
    return (
        textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        if len(line) > width
        else [line]
    )

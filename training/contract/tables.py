"""Text laid out for people: tables and folded lines for a terminal, and tables in Markdown.

No other module lays out a table of text. Widths are those of a terminal, in which some characters take two columns.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported where it is needed, because a node that trains has no use for it
    from rich.table import Table
    from rich.text import Text

WIDTH = 80
GAP = 2  # spaces between two columns
WHOLE = 8  # columns of words that are never divided
_UNIT = re.compile(r"(?<=\d) (?=[A-Za-z])")  # the space in 1.0 MB


def folded(line: str) -> list[str]:
    """Break a line into pieces of at most WIDTH columns; all pieces but the first are indented further."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown, whose cells are Markdown too."""
    first, *others = (f"| {' | '.join(row)} |" for row in (head, *rows))
    return [first, f"|{'---|' * len(head)}", *others]


def table_lines(rows: Sequence[Sequence[str]], *, indent: int = 0, width: int = WIDTH, **how: Any) -> list[str]:
    """Return the lines of a table like `table`, indented, without colours; none if there are no rows."""
    from rich.console import Console

    if not rows:
        return []
    output = StringIO()
    console = Console(file=output, width=100 * width, color_system=None)  # the table has its own width
    console.print(table(rows, width=width - indent, **how))
    return [f"{' ' * indent}{line}".rstrip() for line in output.getvalue()[:-1].split("\n")]


def table(
    rows: Sequence[Sequence[str | Text]],
    *,
    head: Sequence[str] = (),
    title: str = "",
    right: Container[int] = (),
    width: int = WIDTH,
) -> Table:
    """Return a table of at most `width` columns for rich to print. A table with a title has a line below its head.

    Cells are divided between words, and long words too if that is too wide. The columns with the numbers in `right` are
    aligned to the right, and no word in them is divided, nor a number from its unit.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns = list(zip(*([head] if head else []), *rows, strict=True))
    widths = _widths([list(map(str, column)) for column in columns], right, width)
    shown = Table(
        title=Text(title, "bold") if title else None, title_justify="left", show_header=bool(head), show_edge=False
    )
    shown.box = box.SIMPLE_HEAD if title else None
    shown.padding, shown.pad_edge = (0, GAP - bool(title), 0, 0), False  # the box adds one space between columns
    for number, own in enumerate(widths):
        justify = "right" if number in right else "left"
        shown.add_column(head[number] if head else "", justify=justify, width=own, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return shown


def _widths(columns: Sequence[Sequence[str]], right: Container[int], width: int) -> list[int]:
    """Return the widths of the columns that are shown."""
    whole = [
        [_UNIT.sub("_", cell) if number in right else cell for cell in column] for number, column in enumerate(columns)
    ]
    widths = [GAP + max(map(_longest_word, column)) for column in whole]
    wanted = [GAP + max(_longest(cell.split("\n")) for cell in column) for column in columns]
    room = GAP + width  # there is no gap after the last column
    for _ in range(min(room, sum(wanted)) - sum(widths)):
        widths[max(range(len(widths)), key=lambda number: wanted[number] - widths[number])] += 1
    texts = [number for number in range(len(widths)) if number not in right]
    while sum(widths) > room and max((widths[number] for number in texts), default=0) > GAP + WHOLE:
        widths[max(texts, key=lambda number: widths[number])] -= 1
    return [own - GAP for own in widths]


def _longest_word(text: str) -> int:
    """Return the width of the widest part that is not divided: a line of several, or else a word."""
    return _longest(text.split("\n") if "\n" in text else text.split())


def _longest(parts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, parts), default=0)

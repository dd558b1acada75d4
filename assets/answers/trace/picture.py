"""The answer to `pedigree trace --lineage` as a picture: an SVG file with a box for each artifact.

The artifact that was asked for is on the right; every other one is to the left of all that read it. A line that passes
other columns runs between their boxes, and those of one artifact are one line up to where they part. Guards, which
allowed a training and gave it no data, have dashed lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from html import escape
from statistics import fmean
from typing import Any, NamedTuple

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 196, 66, 44, 14, 20  # of a box, between boxes, around all; pixels
MOST_CHARACTERS = 26  # of a line in a box
STYLE = """\
svg { background: #ffffff; font: 12px system-ui, sans-serif; }
rect { fill: #f4f6f8; stroke: #5b6b7b; } .asked { fill: #dbeafe; stroke: #1d4ed8; } .problem { stroke: #b91c1c; }
path { fill: none; stroke: #7c8a99; } .guard { stroke-dasharray: 4 3; }
text { fill: #111827; } .small { fill: #4b5563; font-size: 11px; }
@media (prefers-color-scheme: dark) {
svg { background: #0f172a; } rect { fill: #1e293b; stroke: #94a3b8; } .asked { fill: #1e3a8a; stroke: #93c5fd; }
.problem { stroke: #fca5a5; } path { stroke: #94a3b8; } text { fill: #f1f5f9; } .small { fill: #cbd5e1; }
}
"""
Nodes = Mapping[str, Mapping[str, Any]]


class Item(NamedTuple):
    """A box of the picture, or, if it passes, the place where the lines of an artifact pass a column of other boxes."""

    name: str
    column: int
    passes: bool = False
    is_guard: bool = False

    @property
    def height(self) -> int:
        """The item's height in the picture, in pixels."""
        return 0 if self.passes else HEIGHT


Lines = Mapping[Item, Mapping[Item, bool]]  # the items to which lines go from each item; whether they are of a guard


def picture_of(told: Mapping[str, Any]) -> str:
    """Return the SVG picture of a lineage, which loads nothing and runs no script."""
    nodes, asked = told["nodes"], told["artifact"]
    columns = columns_of(nodes, asked)
    lines = lines_of(nodes, columns)
    places = places_of(lines)
    width = MARGIN + max(x for x, _ in places.values()) + WIDTH + MARGIN
    height = MARGIN + max(y + one.height for one, (_, y) in places.items()) + MARGIN
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img"><title>{escape(told["model"])}</title><style>{STYLE}</style>'
    ]
    drawn += [_line(one, other, places, is_guard=of) for one, ends in lines.items() for other, of in ends.items()]
    for name in nodes:
        drawn.append(_box(nodes[name], name, places[Item(name, columns[name])], is_asked=name == asked))
    return "\n".join([*drawn, "</svg>\n"])


def _below(nodes: Nodes, name: str) -> list[str]:
    """Return what an artifact was made from, as far as it is known."""
    return [one for one in dict.fromkeys((*nodes[name]["inputs"], *nodes[name]["guards"])) if one in nodes]


def columns_of(nodes: Nodes, asked: str) -> dict[str, int]:
    """Return how many steps each artifact is away from the one that was asked for, on the longest way."""
    away = {asked: 0}
    waiting = [asked]
    while waiting:
        name = waiting.pop()
        for below in _below(nodes, name):
            if away.get(below, -1) < away[name] + 1 <= len(nodes):  # a circle, which only damage can make, ends
                away[below] = away[name] + 1
                waiting.append(below)
    return {name: away.get(name, 0) for name in nodes}


def lines_of(nodes: Nodes, columns: Mapping[str, int]) -> dict[Item, dict[Item, bool]]:
    """Return every box and every place where lines pass a column, with the items to the right to which lines go."""
    lines: dict[Item, dict[Item, bool]] = {Item(name, columns[name]): {} for name in nodes}
    for name in nodes:
        guards = set(nodes[name]["guards"]) - set(nodes[name]["inputs"])
        for below in _below(nodes, name):
            at, of = Item(below, columns[below]), below in guards
            for column in range(columns[below] - 1, columns[name], -1):
                passing = Item(below, column, passes=True, is_guard=of)
                lines[at][passing] = of
                at = passing
                lines.setdefault(at, {})
            lines[at][Item(name, columns[name])] = of
    return lines


def places_of(lines: Lines) -> dict[Item, tuple[int, int]]:
    """Return the left upper corner of each item.

    From right to left, the items of a column are ordered by the height at which their lines end, so few lines cross,
    and are as near to it as the others let them.
    """
    by_column: dict[int, list[Item]] = defaultdict(list)
    for item in lines:
        by_column[item.column].append(item)
    last, middles = max(by_column), dict[Item, float]()
    for column in sorted(by_column):
        wanted = {one: _wanted(lines[one], middles) for one in by_column[column]}
        own = sorted(by_column[column], key=lambda one: (wanted[one], one.passes))
        at = list[float]()
        for above, one in zip([None, *own], own, strict=False):
            room = (above.height + one.height) / 2 + GAP_Y if above else 0.0
            at.append(max(wanted[one], at[-1] + room) if at else wanted[one])
        shift = fmean(wanted[one] - place for one, place in zip(own, at, strict=True))
        middles |= {one: place + shift for one, place in zip(own, at, strict=True)}
    top = min(middle - one.height / 2 for one, middle in middles.items())
    return {
        one: (MARGIN + (last - one.column) * (WIDTH + GAP_X), MARGIN + round(middle - one.height / 2 - top))
        for one, middle in middles.items()
    }


def _wanted(ends: Iterable[Item], middles: Mapping[Item, float]) -> float:
    """Return the mean height of the items to which lines go."""
    own = [middles[one] for one in ends if one in middles]
    return fmean(own) if own else 0.0


def _line(one: Item, other: Item, places: Mapping[Item, tuple[int, int]], *, is_guard: bool) -> str:
    (x0, y0), (x1, y1) = places[one], places[other]
    x0, y0, y1 = x0 + WIDTH, y0 + one.height // 2, y1 + other.height // 2
    middle = (x0 + x1) // 2
    kind = 'class="guard" ' if is_guard else ""
    through = f"H{x1 + WIDTH}" if other.passes else ""
    return f'<path {kind}d="M{x0} {y0}C{middle} {y0} {middle} {y1} {x1} {y1}{through}"/>'


def _box(node: Mapping[str, Any], name: str, place: tuple[int, int], *, is_asked: bool) -> str:
    x, y = place
    kind = 'class="problem" ' if node["problem"] else 'class="asked" ' if is_asked else ""
    seconds = node["cost"].get("cpu_seconds")
    spent = f", {seconds:,.1f} s" if seconds is not None else ""
    small = (node["partition"].partition("@")[2], f"{name[:12]}{spent}")
    more = escape(node["problem"] or f"{node['recipe']}, stage version {node['stage_version']}")
    texts = [f'<text x="{x + 10}" y="{y + 20}">{escape(_cut(node["asset"]))}</text>']
    for row, text in enumerate(filter(None, small)):
        texts.append(f'<text class="small" x="{x + 10}" y="{y + 38 + 17 * row}">{escape(_cut(text))}</text>')
    return (
        f"<g><title>{escape(node['asset'])} {escape(node['partition'])} {name}: {more}</title>"
        f'<rect {kind}x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>{"".join(texts)}</g>'
    )


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"

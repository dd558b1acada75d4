"""The answer to `pedigree trace --lineage` as a picture: an SVG file with a box for each artifact.

The artifact that was asked for is on the right; every other one is to the left of all that read it. Guards, which
allowed a training and gave it no data, have dashed lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from html import escape
from statistics import fmean
from typing import Any

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 216, 52, 64, 16, 20  # of a box, between boxes, around all; pixels
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


def picture_of(told: Mapping[str, Any]) -> str:
    """Return the SVG picture of a lineage, which loads nothing and runs no script."""
    nodes, asked = told["nodes"], told["artifact"]
    columns = columns_of(nodes, asked)
    places = places_of(nodes, columns)
    width = MARGIN + max(x for x, _ in places.values()) + WIDTH + MARGIN
    height = MARGIN + max(y for _, y in places.values()) + HEIGHT + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img"><title>{escape(told["model"])}</title><style>{STYLE}</style>'
    ]
    for name in nodes:
        guards = set(nodes[name]["guards"]) - set(nodes[name]["inputs"])
        lines += [_line(places[one], places[name], is_guard=one in guards) for one in _below(nodes, name)]
    lines += [_box(nodes[name], name, places[name], is_asked=name == asked) for name in nodes]
    return "\n".join([*lines, "</svg>\n"])


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


def places_of(nodes: Nodes, columns: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the left upper corner of each box; in a column they are ordered by what reads them, so few lines cross."""
    last, rows, readers = max(columns.values()), dict[str, float](), defaultdict[str, list[str]](list)
    for name in nodes:
        for below in _below(nodes, name):
            readers[below].append(name)
    places = {}
    for column in range(last + 1):
        own = [name for name in nodes if columns[name] == column]
        named = {name: (nodes[name]["asset"], nodes[name]["partition"]) for name in own}
        beside = {name: fmean([rows[one] for one in readers[name] if one in rows] or [0.0]) for name in own}
        own.sort(key=lambda name: (beside[name], *named[name]))
        for row, name in enumerate(own):
            rows[name] = row / max(1, len(own) - 1)
            places[name] = MARGIN + (last - column) * (WIDTH + GAP_X), MARGIN + row * (HEIGHT + GAP_Y)
    return places


def _line(start: tuple[int, int], end: tuple[int, int], *, is_guard: bool) -> str:
    (x0, y0), (x1, y1) = (start[0] + WIDTH, start[1] + HEIGHT // 2), (end[0], end[1] + HEIGHT // 2)
    middle = (x0 + x1) // 2
    kind = 'class="guard" ' if is_guard else ""
    return f'<path {kind}d="M{x0} {y0}C{middle} {y0} {middle} {y1} {x1} {y1}"/>'


def _box(node: Mapping[str, Any], name: str, place: tuple[int, int], *, is_asked: bool) -> str:
    x, y = place
    kind = 'class="problem" ' if node["problem"] else 'class="asked" ' if is_asked else ""
    part = node["partition"].partition("@")[2]
    seconds = node["cost"].get("cpu_seconds")
    spent = f", {seconds:,.1f} processor s" if seconds is not None else ""
    small = escape(f"{name[:12]}{f' {part}' if part else ''}{spent}")
    more = escape(node["problem"] or f"{node['recipe']}, stage version {node['stage_version']}")
    return (
        f"<g><title>{escape(node['asset'])} {name}: {more}</title>"
        f'<rect {kind}x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{x + 10}" y="{y + 21}">{escape(node["asset"])}</text>'
        f'<text class="small" x="{x + 10}" y="{y + 39}">{small}</text></g>'
    )

"""The pictures of a report, as SVG without a script: the funnel of documents, bars with intervals, lines, and grids.

Every picture is WIDTH units wide, so that it fits a phone, and colours come from the page's style (`kept`, `dropped`,
`quarantined` and others), so that they follow its light, dark and printed form. Each returns an empty text if there is
nothing to draw. The page shows the numbers of each picture in a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

WIDTH = 340
LETTER = 7.2  # width of a letter at the pictures' size of 12, in units; that of DejaVu Sans, which is a wide font
FLOW = 130  # width of all records at the top of the funnel
LOST_AT = 138  # where the labels of lost records begin
ROW, BAR = 18, 8  # heights of a row of text and of a stage's bar
LEAST = 1.5  # a flow of few records is drawn this thick, so that it is seen
MOST_POINTS = 100  # of a line
GRID_ROWS = 24  # of a grid; with more of them, a row is lower than its label, and only some have one

Lost = tuple[str, str, int]
"""Records that a stage did not keep: `dropped` or `quarantined`, the reason, and how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One stage of the funnel, over all snapshots: records read, records kept, and the others by reason."""

    name: str
    records: int
    kept: int
    lost: tuple[Lost, ...]


def funnel_steps(funnel: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Step]:
    """Return the stages of all snapshots together, in order. A reason is the part before its colon."""
    sums: dict[str, tuple[list[int], dict[tuple[str, str], int]]] = {}
    for stages in funnel.values():
        for stage in stages:
            counts, lost = sums.setdefault(stage["asset"], ([0, 0], {}))
            counts[0] += stage["in"]
            counts[1] += stage["kept"]
            for outcome in ("dropped", "quarantined"):
                for reason, records in stage[outcome].items():
                    key = (outcome, _in_words(reason.partition(":")[0]))
                    lost[key] = lost.get(key, 0) + records
    return [
        Step(
            name=_in_words(asset),
            records=records,
            kept=kept,
            lost=tuple(sorted(((*key, number) for key, number in lost.items() if number), key=lambda one: -one[2])),
        )
        for asset, ((records, kept), lost) in sums.items()
    ]


def _in_words(name: str) -> str:
    return name.replace("_", " ")


def funnel_picture(steps: Sequence[Step]) -> Markup:
    """Return a Sankey diagram from top to bottom: kept records flow down, lost records leave to the right.

    Each label has a row of its own, so no two of them overlap.
    """
    if not steps or not steps[0].records:
        return Markup("")
    scale = FLOW / max(step.records for step in steps)
    y = float(ROW + BAR)
    drawn = [_stage_bar("crawl records", steps[0].records, scale, y)]
    for step in steps:
        begin, right = y, step.records * scale
        for outcome, reason, number in step.lost:
            thick = max(LEAST, number * scale)
            high = max(float(ROW), thick + 4)
            y += high
            drawn.append(_lost(outcome, reason, number, (right, begin), (y - high / 2, thick)))
            right -= number * scale
        y += ROW + BAR + 4
        drawn.insert(0, _rect("kept flow", 0, begin, step.kept * scale, y - begin))
        drawn.append(_stage_bar(step.name, step.kept, scale, y))
    return _picture("Documents kept, dropped and quarantined by each stage", y + 4, drawn)


def _stage_bar(name: str, records: int, scale: float, bottom: float) -> Markup:
    """Return the SVG of a stage's bar in the funnel, which ends at height `bottom`, with its label above."""
    label = _text(2, bottom - BAR - 5, f"{records:,} {name}", "name")
    return label + _rect("kept", 0, bottom - BAR, max(LEAST, records * scale), BAR)


def _lost(outcome: str, reason: str, number: int, start: tuple[float, float], end: tuple[float, float]) -> Markup:
    """Return the SVG of a flow of lost records, with its label.

    It goes from the right end of the records at height `start` to the row at height `end[0]`.
    """
    (right, top), (middle, thick) = start, end
    left, above, below = max(0.0, right - thick), middle - thick / 2, middle + thick / 2
    path = (
        f"M{right:.1f},{top:.1f} Q{right:.1f},{above:.1f} {LOST_AT},{above:.1f}"
        f" L{LOST_AT},{below:.1f} Q{left:.1f},{below:.1f} {left:.1f},{top:.1f} Z"
    )
    words = f"{number:,} {'in quarantine: ' if outcome == 'quarantined' else ''}{reason}"
    flow = Markup('<path class="{} flow" d="{}"><title>{}: {} {:,}</title></path>')
    bar = _rect(outcome, LOST_AT, above, 4, thick)
    return flow.format(outcome, path, outcome, reason, number) + bar + _text(LOST_AT + 8, middle + 4, words, "name")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar: its label, its value, the value as text, the ends of its interval if it has one, and its class."""

    label: str
    value: float
    text: str
    interval: tuple[float, float] | None = None
    kind: str = "bar"


def bars_picture(title: str, bars: Sequence[Bar], *, most: float, mark: float | None = None) -> Markup:
    """Return horizontal bars from 0 to `most`, with intervals as lines, and `mark` as a dashed line through them all.

    The value stands in the row of the label, above its bar, so that texts do not overlap.
    """
    if not bars or most <= 0:
        return Markup("")
    wide, high = float(WIDTH), 2 * ROW
    drawn = []
    for number, bar in enumerate(bars):
        y = number * high + ROW
        drawn.append(_text(0, y - 4, bar.label, "name", room=WIDTH - LETTER * (len(bar.text) + 1)))
        drawn.append(_text(WIDTH, y - 4, bar.text, "value", room=WIDTH))
        drawn.append(_rect(bar.kind, 0, y, wide * abs(bar.value) / most, 10))
        if bar.interval is not None:
            low, top = (wide * end / most for end in bar.interval)
            drawn.append(_line("whisker", low, y + 5, top, y + 5))
            drawn += [_line("whisker", x, y + 1, x, y + 9) for x in (low, top)]
        if mark is not None:
            drawn.append(_line("mark", wide * mark / most, y - 2, wide * mark / most, y + 12))
    return _picture(title, len(bars) * high, drawn)


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points if they are few, else MOST_POINTS of them at even distances, with the first and the last."""
    if len(points) <= MOST_POINTS:
        return list(points)
    return [points[round(number * (len(points) - 1) / (MOST_POINTS - 1))] for number in range(MOST_POINTS)]


def line_picture(title: str, points: Sequence[tuple[float, float]], *, horizontal: str) -> Markup:
    """Return a line through `points` with its least and largest values at the axes.

    A point without a number is left out.
    """
    points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return Markup("")
    (first, last), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    left, right, top, bottom = 52.0, WIDTH - 6.0, 8.0, 120.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        up = (y - low) / (high - low) if high > low else 0.5
        return left + across * (right - left), bottom - up * (bottom - top)

    path = " ".join(f"{'L' if number else 'M'}{x:.1f},{y:.1f}" for number, (x, y) in enumerate(at(*p) for p in points))
    drawn = [
        _line("axis", left, top, left, bottom),
        _line("axis", left, bottom, right, bottom),
        Markup('<path class="line" d="{}"/>').format(path),
        _text(left - 6, top + 8, f"{high:.3g}", "value", room=left),
        _text(left - 6, bottom, f"{low:.3g}", "value", room=left),
        _text(left, bottom + 16, f"{first:,.0f}", "name"),
        _text(right, bottom + 16, f"{horizontal} {last:,.0f}", "value", room=WIDTH),
    ]
    return _picture(title, bottom + 24, drawn)


def lines_picture(title: str, lines: Sequence[Sequence[tuple[float, float]]], *, horizontal: str) -> Markup:
    """Return several lines on common axes, of the classes `line l0`, `line l1` and so on; empty if none has a point."""
    drawn = [[(x, y) for x, y in line if math.isfinite(x) and math.isfinite(y)] for line in lines]
    points = [point for line in drawn for point in line]
    if not points:
        return Markup("")
    (first, last), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    left, right, top, bottom = 52.0, WIDTH - 6.0, 8.0, 180.0
    elements = [
        _line("axis", left, top, left, bottom),
        _line("axis", left, bottom, right, bottom),
        _text(left - 6, top + 8, f"{high:.3g}", "value", room=left),
        _text(left - 6, bottom, f"{low:.3g}", "value", room=left),
        _text(left, bottom + 16, f"{first:,.0f}", "name"),
        _text(right, bottom + 16, f"{horizontal} {last:,.0f}", "value", room=WIDTH),
    ]
    wide, tall = (last - first) or 1.0, (high - low) or 1.0
    for number, line in enumerate(drawn):
        places = (
            (left + (x - first) / wide * (right - left), bottom - (y - low) / tall * (bottom - top)) for x, y in line
        )
        path = " ".join(f"{'L' if count else 'M'}{x:.1f},{y:.1f}" for count, (x, y) in enumerate(places))
        elements.append(Markup('<path class="line l{}" d="{}"/>').format(number, path))
    return _picture(title, bottom + 24, elements)


def grid_picture(title: str, rows: Mapping[str, Sequence[tuple[float, float]]], *, horizontal: str) -> Markup:
    """Return a heat map: a row for each name, a column for each x, darker for a larger value on a logarithmic scale.

    A cell whose value is no number is of the class `dropped`. There is no cell for a value of 0.
    """
    columns = sorted({x for points in rows.values() for x, _ in points})
    logs = [math.log(y) for points in rows.values() for _, y in points if 0 < y < math.inf]
    if not logs:
        return Markup("")
    low, high = min(logs), max(logs)
    left, wide, tall = 130.0, (WIDTH - 130.0) / len(columns), float(ROW if len(rows) <= GRID_ROWS else ROW / 4)
    drawn = []
    for number, (name, points) in enumerate(rows.items()):
        top = number * tall
        if number % math.ceil(ROW / tall) == 0:
            drawn.append(_text(0, top + 13, name, "name", room=left))
        for x, y in points:
            place = (left + columns.index(x) * wide, top, wide, tall - 1)
            if not math.isfinite(y):
                drawn.append(_rect("dropped", *place))
            elif y > 0:
                drawn.append(_rect("kept", *place, shade=0.1 + 0.9 * (math.log(y) - low) / ((high - low) or 1.0)))
    under = len(rows) * tall + 14
    drawn.append(_text(left, under, f"{columns[0]:,.0f}", "name"))
    drawn.append(_text(WIDTH, under, f"{horizontal} {columns[-1]:,.0f}", "value", room=WIDTH))
    drawn.append(_text(0, under + ROW, f"palest {math.exp(low):.3g}, darkest {math.exp(high):.3g}", "name"))
    return _picture(title, under + ROW + 8, drawn)


# Elements


def alone(picture: Markup, style: str, *, title: str = "", legend: str = "") -> str:
    """Return a picture as a file of its own, with its style and, if they are given, title and legend above it."""
    above = 2 * ROW if title else 0
    high = float(picture.partition('height="')[2].partition('"')[0]) + above + 24
    frame = f'width="{WIDTH + 120}" viewBox="-12 -12 {WIDTH + 24} {high:.0f}"'
    said = Markup('<text class="title" y="12">{}</text>').format(title) if title else ""
    said += Markup('<text y="28">{}</text>').format(legend) if legend else ""
    moved = f'<g transform="translate(0 {above})">{picture}</g>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {frame}><style>{style}</style>{said}{moved}</svg>\n'


def _picture(title: str, height: float, elements: Sequence[Markup]) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {:.0f}" width="{}" height="{:.0f}" role="img" aria-label="{}">')
    return head.format(WIDTH, height, WIDTH, height, title) + Markup("").join(elements) + Markup("</svg>")


def _rect(kind: str, x: float, y: float, width: float, height: float, *, shade: float = 1.0) -> Markup:
    form = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill-opacity="{:.2f}"/>')
    return form.format(kind, x, y, width, height, shade)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    form = Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>')
    return form.format(kind, x1, y1, x2, y2)


def _text(x: float, y: float, words: str, kind: str, *, room: float | None = None) -> Markup:
    """Return the SVG of a text, cut to `room` columns or to the right edge.

    The element's title, which browsers show as a tooltip, has the whole text.
    """
    most = max(3, int(((WIDTH - x) if room is None else room) / LETTER))
    if len(words) <= most:
        return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(kind, x, y, words)
    form = Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}<title>{}</title></text>')
    return form.format(kind, x, y, words[: most - 1] + "…", words)

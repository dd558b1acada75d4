"""Print the end of a run in a terminal: the result in one sentence, one short table, and what all of it took.

Everything else is in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluation.decision.intervals import in_percent
from evaluation.report.scoreboard import (
    FUNNEL,
    MODELS,
    best_count,
    filling_lines,
    headline,
    items_told,
    money,
    node_hours,
    small_lines,
    total_of,
)
from training.contract.tables import table

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS = 6  # of the table, which has at most ten lines then


def render(board: Mapping[str, Any], console: Console, promotion: Mapping[str, Any] | None = None) -> None:
    """Print headline, refusals and tolerated rules, then the scores or without any the documents."""
    if said := headline(board, promotion):
        good = not board["refusals"] and (promotion is None or promotion["promoted"] or not board["promotion"])
        console.print(said, style="bold green" if good else "bold red", highlight=False, markup=False)
    for refusal in board["refusals"]:
        console.print(
            f"refused: {refusal['asset']} [{refusal['partition']}] by gate {refusal['gate']}", style="red", markup=False
        )
    for line in (*_finding_lines(board), *_tolerated_lines(board), *filling_lines(board["filling"])):
        console.print(line, markup=False, soft_wrap=True)  # an address is left whole, so that it can be copied
    if (shown := _score_table(board, console.width) or _documents_table(board, console.width)) is not None:
        console.print()
        console.print(shown, markup=False)
    for line in small_lines(board.get("small", {})):
        console.print(line, markup=False)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, numbers: int) -> Any:
    """Return a table whose first column has names, and the next `numbers` columns numbers."""
    return table(rows, head=columns, title=title, right=range(1, 1 + numbers), width=width)


def _score_table(board: Mapping[str, Any], width: int) -> Any:
    """Return the scores of the first suites, the last model's with its interval, beside the best count and chance."""
    suites = list(board["scores"].items())
    if not suites:
        return None
    last, *others = [model for model in reversed(MODELS) if any(model in models for _, models in suites)]
    small = board.get("small")  # the last model again, so beside it
    rows = [
        (
            suite,
            _score_cell(models.get(last), whole=True),
            *((_score_cell(small["scores"].get(suite)),) if small else ()),
            *(_score_cell(models.get(model)) for model in others),
            "–" if (count := best_count([*models.values()][-1])) is None else f"{100 * count:.0f}",
            f"{100 * [*models.values()][-1]['chance']:.0f}",
            items_told(models),
        )
        for suite, models in suites[:MOST_ROWS]
    ]
    more = f"; {len(suites) - MOST_ROWS} more in the report" if len(suites) > MOST_ROWS else ""
    columns = ("suite", last, *((small["method"],) if small else ()), *others, "best count", "chance", "items")
    return _table(f"Scores in percent (95 % interval{more})", columns, rows, width, len(columns) - 1)


def _score_cell(entry: Mapping[str, Any] | None, *, whole: bool = False) -> str:
    """Return a score in percent, `whole` with its interval, in which no line breaks."""
    if entry is None:
        return "–"
    return in_percent(entry["score"], entry["n"]).replace(" to ", "–") if whole else f"{100 * entry['score']:.1f}"


def _documents_table(board: Mapping[str, Any], width: int) -> Any:
    """Return the documents of all snapshots together, a row for each stage."""
    rows = []
    for asset in FUNNEL:
        stages = [one for stages in board["funnel"].values() for one in stages if one["asset"] == asset]
        dropped: Counter[str] = sum((Counter(one["dropped"]) for one in stages), Counter())
        numbers = [sum(one[name] for one in stages) for name in ("in", "kept")]
        numbers += [dropped.total(), sum(sum(one["quarantined"].values()) for one in stages)]
        often = max(dropped.items(), key=lambda item: item[1], default=None)
        reason = "–" if often is None else f"{often[0].replace('_', ' ').replace(':', ': ')} {often[1]:,}"
        if stages:
            rows.append((asset.removesuffix("_documents"), *(f"{number:,}" for number in numbers), reason))
    columns = ("documents", "in", "kept", "dropped", "quarantined", "most often dropped for")
    return _table("Documents", columns, rows, width, 4) if rows else None


def _tolerated_lines(board: Mapping[str, Any]) -> list[str]:
    report = board["contamination"]
    lines = [
        f"  tolerated by {field}: {', '.join(f'{name}: {text}' for name, text in numbers.items())}"
        for field, numbers in report.get("tolerated", {}).items()
    ]
    return [*lines, *(["  no exam was looked for in the training data"] if report and not report["found"] else [])]


def _finding_lines(board: Mapping[str, Any]) -> list[str]:
    lines = []
    for finding in board["contamination"].get("findings", ()):
        place = finding.get("url") or finding.get("row", "")
        record = f", {finding['warc_file']} at {finding['warc_offset']}" if "warc_file" in finding else ""
        lines.append(f"  {finding['benchmark']} {finding['item']} in {finding['where']}: {place}{record}")
    return lines


def cost_line(board: Mapping[str, Any]) -> str:
    """Return what all artifacts took together, whenever they were made."""
    seconds, size = (sum(row[key] for row in board["cost"]) for key in ("cpu_seconds", "bytes"))
    hours, price = node_hours(total_of(board, "node_hours")), money(total_of(board, "price"))
    least = "at least " * any(row["least"] for row in board["cost"])
    spent = [f"{least}{hours} node-hours" if hours else "", f"price {price}" if price else ""]
    return ", ".join([f"{seconds:,.0f} processor seconds", *filter(None, spent), f"{size / 1e6:,.1f} MB"])

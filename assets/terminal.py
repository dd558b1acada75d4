"""Terminal output: the status of a recipe, the scoreboard at the end of a run, and samples of records."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from assets.run import Report
from assets.status import Comparison
from evaluation.samples import Group

STATE_STYLES = {"made": "green", "missing": "", "outdated": "yellow", "damaged": "bold red", "unavailable": "red"}


def show_status(comparison: Comparison) -> None:
    """Print a table of all cells: asset, partition, state, and why the cell is outdated, damaged or refused."""
    table = Table(title=f"{comparison.recipe.name} under {comparison.root}")
    for column in ("asset", "partition", "state", "why"):
        table.add_column(column, overflow="fold")
    for cell in comparison.cells.values():
        state = cell.state if cell.is_recorded or cell.state != "made" else "made for another recipe"
        refused = [f"gate {gate['name']} refused it" for gate in cell.artifact.failed_gates] if cell.artifact else []
        why = Text("\n".join(line for line in (*refused, *cell.reasons, cell.way_out, cell.remark) if line))
        table.add_row(cell.asset, cell.partition, Text(state, style=STATE_STYLES[cell.state]), why)
    Console().print(table)


def show_scoreboard(comparison: Comparison, report: Report) -> None:
    """Print the results of a run on one screen: the scoreboard from the artifacts, the verdict first, where to look."""
    from evaluation.scoreboard import scoreboard
    from evaluation.scoreboard_print import render

    console = Console(highlight=False)
    made = {cell.asset: cell.artifact for cell in comparison.cells.values() if cell.artifact is not None}
    records = [(cell.artifact.path, cell.artifact.record) for cell in comparison.cells.values() if cell.artifact]
    promotion = {**report.promotion, "promoted": report.promoted} if report.promotion else None
    if records:
        render(scoreboard(records), console, promotion)
    name, root = comparison.recipe.name, comparison.root
    lines = {
        f"This run took {report.seconds:.0f} s. Talk to the model:": f"pedigree chat {name} --root {root}",
        "See it in Dagster (http://127.0.0.1:3000) and MLflow (http://127.0.0.1:5000):": f"pedigree dev --root {root}",
    }
    if card := made.get("model_card"):
        lines["The report:"] = str(card.path / "report.html")
    for what, where in lines.items():
        console.print(f"\n{what}")
        console.print(f"  {where}", soft_wrap=True)  # whole, so that it can be copied


PART_STYLES = {"text": "", "marked": "bold yellow", "removed": "red strike", "added": "green"}
PART_MARKS = {"marked": ("[[", "]]"), "removed": ("[-", "-]"), "added": ("{+", "+}")}  # without colours


def show_samples(groups: Iterable[Group]) -> None:
    """Print groups of records and what a stage did to them. Control characters in the texts are not printed."""
    console = Console(highlight=False, soft_wrap=True)
    for group in groups:
        what = f"{group.outcome}: {group.reason}" if group.reason else group.outcome
        number = (
            f"{group.number:,}" if group.looked_at is None else f"{group.number:,} of {group.looked_at:,} looked at"
        )
        console.print(Text(_harmless(f"\n{group.asset} [{group.partition}]  {what}  {number}"), style="bold"))
        for sample in group.samples:
            console.print(Text(_harmless(f"\n  {sample.url}  {sample.id}"), style="cyan"))
            facts = ", ".join(f"{name} {_fact(value)}" for name, value in sample.facts.items())
            console.print(Text(_harmless(f"  {facts}"), style="dim"))
            if sample.parts:
                console.print(_marked(sample.parts, marks=not console.is_terminal))


def _marked(parts: Iterable[tuple[str, str]], *, marks: bool) -> Text:
    text = Text()
    for kind, words in parts:
        before, after = PART_MARKS.get(kind, ("", "")) if marks else ("", "")
        text.append(f"{before}{_harmless(words)}{after}", style=PART_STYLES[kind])
    return text


def _fact(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _harmless(text: str) -> str:
    """The text with each control character, except newline and tab, replaced by U+FFFD."""
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text)

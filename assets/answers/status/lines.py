"""Terminal output: the status of a recipe, the scoreboard at the end of a run, and samples of records."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from assets.state.cell import Cell, Comparison
from assets.state.chain import CHAIN, GROUPS
from assets.state.reasons import BY_AN_INPUT
from assets.terminal.harmless import harmless
from evaluation.report.samples import OutcomeGroup
from training.contract.scopes import last_model, last_trained
from training.contract.tables import table, table_lines

if TYPE_CHECKING:
    from assets.run.result import Report

# The states of cells, those that need attention most urgently first.
STATE_STYLES = {
    "damaged": "bold red",
    "refused": "red",
    "unavailable": "red",
    "outdated": "yellow",
    "missing": "",
    "made for another recipe": "",
    "made": "green",
}


LINE = 80  # characters of a line that holds both state and reason
LINES_BELOW = 2  # of a terminal, for the prompt


def show_status(comparison: Comparison, asked: str) -> None:
    """Print a line for each group of assets, and the cells (assets in partitions) that need attention, on one screen.

    `asked` is the recipe's name or path as the person gave it, for the commands that are advised.
    """
    console = Console(highlight=False)
    for line in status_lines(comparison, console.height - LINES_BELOW, asked):
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def status_lines(comparison: Comparison, height: int, asked: str) -> list[Text]:
    """The status on at most `height` lines: groups with their counts, then cells that need attention, worst first.

    A cell needs attention if it is neither made nor missing, if a gate refused it, or if there is a remark on it. Cells
    that are outdated through their inputs alone are only counted.
    """
    cells = list(comparison.cells.values())
    lines = [Text(f"{comparison.recipe.name} under {_near(comparison.root)}: {_counted(cells)}", style="bold")]
    of_groups = {name: [cell for cell in cells if CHAIN[cell.asset].group == name] for name in GROUPS}
    groups = {name: members for name, members in of_groups.items() if members}
    counted = [(group, _counted(members)) for group, members in groups.items()]
    lines += map(Text, table_lines(counted, indent=2))
    found = [line for alike in _alike(sorted(cells, key=_urgency)) for line in _attention(alike)]
    if follow := sum(map(_only_by_inputs, cells)):
        found.append(Text(f"{follow} more are outdated because an input of theirs is, or is new"))
    room = height - len(lines) - 2  # for the two lines below
    if len(found) > room:
        found = [*found[: room - 1], Text(f"  and {len(found) - room + 1} more lines", style="dim")]
    lines += found
    if to_do := comparison.to_do():
        lines.append(Text(f"`pedigree run {asked}` makes or records {len(to_do)} of {len(cells)}"))
    return [*lines, Text(f"`pedigree status {asked} --all` shows every asset and reason", style="dim")]


def _counted(cells: Sequence[Cell]) -> str:
    """Return a phrase with the number of made cells and the number of cells in each other state."""
    counts = Counter(_state(cell) for cell in cells)
    made = counts.pop("made", 0)
    others = [f"{number} {state}" for state, number in sorted(counts.items(), key=lambda item: item[0])]
    return ", ".join([f"{made} of {len(cells)} made", *others])


def _state(cell: Cell) -> str:
    if cell.artifact is not None and cell.artifact.failed_gates:
        return "refused"
    return cell.state if cell.is_recorded or cell.state != "made" else "made for another recipe"


def _urgency(cell: Cell) -> int:
    return list(STATE_STYLES).index(_state(cell))


def _reasons(cell: Cell) -> list[str]:
    refused = [f"gate {gate['name']} refused it" for gate in cell.artifact.failed_gates] if cell.artifact else []
    return [line for line in (*refused, *cell.reasons, cell.way_out, cell.remark) if line]


def _alike(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Group the cells that need attention by asset, state and reasons."""
    found: dict[tuple[str, str, tuple[str, ...]], list[Cell]] = {}
    for cell in cells:
        state, reasons = _state(cell), tuple(_reasons(cell))
        if state != "missing" and reasons and not _only_by_inputs(cell):
            found.setdefault((cell.asset, state, reasons), []).append(cell)
    return list(found.values())


def _attention(alike: Sequence[Cell]) -> list[Text]:
    """Return the text about cells of one asset with the same state and reasons.

    It is one line if that fits, else one line for each reason.
    """
    cell, state = alike[0], _state(alike[0])
    partitions = cell.partition if len(alike) == 1 else f"{len(alike)} partitions"
    title = Text.assemble(f"{cell.asset} [{partitions}]: ", (state, STATE_STYLES[state]))
    lines = [line for reason in _reasons(cell) for line in reason.splitlines()]
    if len(lines) == 1 and len(title) + len(lines[0]) + 2 <= LINE:
        return [Text.assemble(title, f", {lines[0]}")]
    return [title, *(Text(f"  {line}") for line in lines)]


def _only_by_inputs(cell: Cell) -> bool:
    return cell.state == "outdated" and all(
        reason.startswith("input ") and reason.endswith(BY_AN_INPUT) for reason in cell.reasons
    )


def show_cells(comparison: Comparison) -> None:
    """Print a table of all cells: asset, partition, state, and why the cell is outdated, damaged or refused."""
    rows = []
    for cell in comparison.cells.values():
        state = _state(cell)
        rows.append((f"{cell.asset} [{cell.partition}]", Text(state, STATE_STYLES[state]), "\n".join(_reasons(cell))))
    title, head = f"{comparison.recipe.name} under {_near(comparison.root)}", ("asset [partition]", "state", "why")
    console = Console()
    console.print(table(rows, title=title, head=head, width=console.width))


def show_list(rows: Sequence[Mapping[str, str]]) -> None:
    """Print the name and the description of each row; a long description is wrapped below its first line."""
    console = Console(highlight=False)
    named = [(Text(row["name"], "bold"), row["description"]) for row in rows]
    console.print(table(named, width=console.width))


def show_scoreboard(comparison: Comparison, report: Report) -> None:
    """Print the result of a run: the verdict and a table, then a line each to talk to it, to look and to read on."""
    from evaluation.decision.answers import choice_in_words
    from evaluation.report.scoreboard import scoreboard
    from evaluation.report.scoreboard_print import cost_line, render

    console = Console(highlight=False)
    made = {cell.asset: cell.artifact for cell in comparison.cells.values() if cell.artifact is not None}
    records = [(cell.artifact.path, cell.artifact.record) for cell in comparison.cells.values() if cell.artifact]
    lines = [("Took:", f"this run {report.seconds:,.0f} s")]
    if records:
        board = scoreboard(records)
        render(board, console, {**report.promotion, "promoted": report.promoted})
        lines.append(("", f"all artifacts {cost_line(board)}"))
    name, root = comparison.recipe.name, shlex.quote(str(_near(comparison.root)))
    pedigree = "pedigree" if shutil.which("pedigree") else str(_near(Path(sys.executable).with_name("pedigree")))
    if choice := next(filter(None, (choice_in_words(record) for _, record in records)), ""):
        lines.append(("Chosen:", choice))
    last = last_model(comparison.recipe)
    if last in made and last_trained(comparison.recipe) != "base_model":  # which has no chat template
        lines.append(("Talk to it:", f"{pedigree} chat {name} --root {root}"))
    lines.append(("In a browser:", f"{pedigree} dev --root {root}"))
    pages = [made[asset].file("report.html") for asset in ("promoted_model", "model_card") if asset in made]
    if page := next((page for page in pages if page.exists()), None):
        lines.append(("Read on:", str(_near(page))))
    console.print()
    for what, where in lines:
        console.print(f"{what:<14}{where}", markup=False, soft_wrap=True)  # whole, so that it can be copied


def _near(path: Path) -> Path:
    """Return the path relative to the current folder if it is below it, so that it is short; else the whole path."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


PART_STYLES = {"text": "", "marked": "bold yellow", "removed": "red strike", "added": "green"}
PART_MARKS = {"marked": ("[[", "]]"), "removed": ("[-", "-]"), "added": ("{+", "+}")}  # without colours


def show_samples(groups: Iterable[OutcomeGroup]) -> None:
    """Print groups of records and the changes that a stage made to them.

    Control characters in the texts are not printed. A terminal gets lines of its width, apart from addresses.
    """
    console = Console(highlight=False, soft_wrap=True)
    whole = not console.is_terminal
    for group in groups:
        what = f"{group.outcome}: {group.reason}" if group.reason else group.outcome
        number = (
            f"{group.number:,}" if group.looked_at is None else f"{group.number:,} of {group.looked_at:,} looked at"
        )
        console.print(Text(harmless(f"\n{group.asset} [{group.partition}]  {what}  {number}"), style="bold"))
        for sample in group.samples:
            console.print(Text(harmless(f"\n  {sample.url}  {sample.id}"), style="cyan"))
            facts = Text(harmless(_facts(sample.facts)), style="dim")
            console.print(Text("  ") + facts if whole else Padding(facts, (0, 0, 0, 2)), soft_wrap=whole)
            if sample.parts:
                console.print(_marked(sample.parts, marks=whole), soft_wrap=whole)


def _marked(parts: Iterable[tuple[str, str]], *, marks: bool) -> Text:
    text = Text()
    for kind, words in parts:
        before, after = PART_MARKS.get(kind, ("", "")) if marks else ("", "")
        text.append(f"{before}{harmless(words)}{after}", style=PART_STYLES[kind])
    return text


def _facts(facts: Mapping[str, Any]) -> str:
    """Return what is known of a record in one line; the value that decided, and its limit, come first."""
    names = sorted(facts, key=lambda name: name not in ("value", "limit")) if "value" in facts else facts
    return ", ".join(f"{name} {_fact(facts[name])}" for name in names)


def _fact(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

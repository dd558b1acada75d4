"""Draw the pictures of README.md from real runs: `python -m benchmarks.pictures RECIPE LEAK --root runs`.

Runs both, which makes nothing if both were run under the root before. RECIPE must end promoted, and LEAK must be
refused because of a leaked exam.

| file in docs/images | shows |
|---|---|
| `scoreboard.svg` | the end of `pedigree run RECIPE` in a terminal: result, scores, contamination |
| `funnel.svg` | the documents that each stage kept and dropped, as in the report |
| `leak.svg` | the evidence with which `pedigree run LEAK` was refused: items, pages, records |

The texts of a terminal are text in the SVG too, in the reader's own monospaced font.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from assets.registry.refusal import refusal_lines
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from evaluation.report.figures import alone, funnel_picture, funnel_steps
from evaluation.report.scoreboard import scoreboard
from evaluation.report.scoreboard_print import render

FOLDER = Path(__file__).parent.parent / "docs" / "images"
COLUMNS = 80
FINDINGS = 2  # shown of a refusal
TERMINAL = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, "DejaVu Sans Mono", monospace; white-space: pre; }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="#14181f"/>
<g transform="translate(9, 9)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
FUNNEL = """
:root { background: #fff; } text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #1d2733; }
.kept { fill: #2f6fb0; } .dropped { fill: #c4462f; } .quarantined { fill: #a87400; } .flow { opacity: 0.38; }
"""


def main() -> int:
    """Draw the three pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("leak")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--to", type=Path, default=FOLDER)
    options = parser.parse_args()
    ran, leaked = (answer(name, options.root) for name in (options.recipe, options.leak))
    board = scoreboard(records_of(options.recipe, options.root.resolve()))
    pictures = {
        "scoreboard.svg": terminal(scoreboard_lines(board, {**ran["promotion"], "promoted": ran["promoted"]})),
        "funnel.svg": funnel(board["funnel"]),
        "leak.svg": terminal(map(Text, leak_lines(leaked["refusals"][0]))),
    }
    for name, picture in pictures.items():
        (options.to / name).write_text(picture, "utf-8")
        print(f"{options.to / name}: {len(picture):,} bytes")
    return 0


def answer(name: str, root: Path) -> dict[str, Any]:
    """Return what `pedigree run --json` answers."""
    program = "from assets.commands.cli import main; main()"
    command = (sys.executable, "-c", program, "run", name, "--root", str(root), "--json")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout.strip().splitlines()[-1])


def records_of(name: str, root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return folder and record of every artifact that a recipe has under a root."""
    cells = compare(load_recipe(name, recipe_folders(root)), root).cells.values()
    return [(cell.artifact.path, dict(cell.artifact.record)) for cell in cells if cell.artifact is not None]


def scoreboard_lines(board: Mapping[str, Any], promotion: Mapping[str, Any]) -> list[Text]:
    """Return the end of a run, as a terminal of 80 columns shows it."""
    said = io.StringIO()
    render(board, Console(file=said, width=COLUMNS, force_terminal=True, highlight=False), promotion)
    return [Text.from_ansi(line) for line in said.getvalue().splitlines()]


def leak_lines(refusal: Mapping[str, Any]) -> list[str]:
    """Return the lines about a refusal, with at most FINDINGS of its findings and without the scan's other numbers."""
    evidence = refusal["evidence"]
    only = {name: evidence[name] for name in ("reason", "findings", "verdict") if name in evidence}
    return refusal_lines({**refusal, "evidence": {**only, "findings": list(evidence["findings"])[:FINDINGS]}})


def terminal(lines: Iterable[Text]) -> str:
    """Return lines as a terminal shows them, as SVG."""
    console = Console(file=io.StringIO(), record=True, width=COLUMNS + 2, force_terminal=True, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=False)
    return console.export_svg(code_format=TERMINAL, unique_id="t")


def funnel(stages: Mapping[str, Any]) -> str:
    """Return the report's picture of the funnel as a file of its own, with the colours of its light form."""
    return alone(funnel_picture(funnel_steps(stages)), FUNNEL)


if __name__ == "__main__":
    sys.exit(main())

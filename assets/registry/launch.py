"""Report a launch to MLflow: the recipe at its start, and the recipe's results at its end."""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from assets.registry.decision import SCORES
from assets.registry.numbers import committed_at
from assets.registry.versions import judged, scores_of
from evaluation.decision.answers import sample_file, score_of
from resources.tracking.reports import cut
from training.recipe.recipe import recipe_as_data

if TYPE_CHECKING:
    from assets.state.cell import Comparison
    from resources.tracking.reports import StageRun
    from training.recipe.recipe import Recipe

log = logging.getLogger(__name__)

CARD = "model_card"
COSTS = ("cpu_seconds", "wall_seconds", "node_hours")
ITEMS = 200  # of a suite in a table; the scores' artifact has all
CELL_CHARACTERS = 1000  # of a question or an answer in a table


def report_asked(run: StageRun, recipe: Recipe) -> None:
    """Report the recipe to a launch's MLflow run, as parameters and as a file."""
    data = recipe_as_data(recipe)
    run.log_params(data)
    run.log_text("recipe.yaml", yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def report_result(run: StageRun, comparison: Comparison) -> None:
    """Report the results of a finished launch to its MLflow run: scores, cost, answers, model card and report."""
    made = [cell.artifact for cell in comparison.cells.values() if cell.artifact is not None]
    if not made:
        return
    row: dict[str, Any] = {"step": 0, "time": max(committed_at(one) for one in made)}
    row |= {f"eval/{one.suite}": one.value for one in scores_of(comparison)}
    row |= {f"cost/{name}": sum(one.record["cost"].get(name, 0.0) for one in made) for name in COSTS}
    run.log_metrics([row])
    run.log_tables(tables_of_answers(comparison))
    card = comparison.cells.get((CARD, comparison.recipe.name))
    if card is not None and card.artifact is not None:
        for name in ("README.md", "report.html"):
            run.log_artifact(card.artifact.file(name))


def tables_of_answers(comparison: Comparison) -> dict[str, list[dict[str, Any]]]:
    """The first answers of the recipe's last model to each suite, as {file: rows}; empty if it was not scored."""
    made = comparison.cells[SCORES, comparison.recipe.name].artifact
    if made is None:
        return {}
    model = judged(comparison.recipe)
    samples = {one.suite: made.file(sample_file(model, one.suite)) for one in scores_of(comparison)}
    tables = {
        f"answers/{suite}.json": [
            {
                "question": cut(row["prompt"], CELL_CHARACTERS),
                "answer": cut(row["response"], CELL_CHARACTERS),
                "expected": row["target"],
                "right": score_of(row),
                "item": row["item"],
            }
            for row in _first_of(file)
        ]
        for suite, file in samples.items()
    }
    return {name: rows for name, rows in tables.items() if rows}


def _first_of(samples: Path) -> list[dict[str, Any]]:
    """Return the first rows of a file of samples; none, with a warning, if it cannot be read."""
    from training.data.documents import read_lines

    try:
        return list(islice(read_lines(samples), ITEMS))
    except (OSError, ValueError) as error:
        log.warning("MLflow gets no table of %s: %s", samples.name, error)
        return []

"""How long assets will take that nothing like them was made before: from the recipe's amounts of work, and from rates.

`rates.yaml` beside this module has a rate for each asset of an ordinary recipe, measured on one machine by
`python -m benchmarks.rates`. Other machines differ; a run corrects the estimates by what its first assets took.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from assets.state.cell import Cell
from assets.state.chain import partition_key
from assets.state.references import Damaged, read_reference
from resources.compute.size import Size
from training.contract import artifact
from training.contract.files.writing import regular_bytes
from training.contract.scopes import asks_for
from training.contract.user_input.plain_data import read_yaml
from training.pretrain.capacity.needs import training_operations
from training.recipe.recipe import Recipe
from training.recipe.settings.evaluation import JUDGED_PROMPTS

RATES_FILE = Path(__file__).with_name("rates.yaml")
LEARNS_FROM = {"sft_model": "instruction_data", "reward_model": "preference_data", "aligned_model": "preference_data"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Seconds that an asset takes: `start`, and `each` for every unit of its work (a name in `UNITS`; empty: none)."""

    start: float
    each: float = 0.0
    unit: str = ""


@cache
def rates() -> dict[str, Rate]:
    """Return the measured rates by asset."""
    return {asset: Rate(**fields) for asset, fields in read_yaml(RATES_FILE).items()}


class FirstRun:
    """Estimates of the seconds that the cells of a recipe take on this machine's processors.

    `size_for` returns an asset's size in the profile. Other machines and GPUs have no rates here.
    """

    def __init__(self, recipe: Recipe, root: Path, size_for: Callable[[str], Size]) -> None:
        self._recipe, self._root, self._size_for = recipe, root, size_for
        self._records: dict[tuple[str, str], dict[str, Any]] = {}

    def seconds(self, cell: Cell) -> float | None:
        """Return the seconds that a cell (an asset in a partition) will take; None if its rate or work is unknown."""
        rate, size = rates().get(cell.asset), self._size_for(cell.asset)
        if rate is None or size.backend != "local" or size.gpus_per_node:
            return None
        work = self.work(rate.unit, cell)
        return None if work is None else rate.start + rate.each * work

    def work(self, unit: str, cell: Cell) -> float | None:
        """Return how many units of work a cell is; None as long as what decides this is not made."""
        return UNITS[unit](self, cell) if unit else 0.0

    def _pages(self, cell: Cell) -> float | None:
        """The responses of the cell's snapshot, or of all snapshots that the recipe has."""
        snapshots = [partition_key(self._recipe, one.name) for one in self._recipe.snapshots]
        numbers = [self._responses(name) for name in ([cell.partition] if cell.part else snapshots)]
        return None if None in numbers else float(sum(number or 0 for number in numbers))

    def _responses(self, partition: str) -> float | None:
        if counts := self.record("extracted_documents", partition).get("counts"):
            return counts["in"]
        snapshot = self._recipe.snapshot(partition.partition("@")[2])
        return self._recipe.kitchen.pages if snapshot.source == "kitchen" else None

    def _flop(self, cell: Cell) -> float | None:
        """The operations of a pretraining."""
        batches = self._recipe.pretrain.batches
        if batches.tokens == "auto":
            tokens = self.record("training_plan", self._recipe.name).get("metrics", {}).get("tokens")
            if tokens is None:
                return None
            batches = batches.of_tokens(int(tokens))
        shape = self._recipe.model.shape(vocab_size=self._recipe.tokenizer.vocabulary)
        return training_operations(shape, batches.phases)

    def _tuned(self, cell: Cell) -> float | None:
        """The weights of the model times the examples that it learns from."""
        recipe = self._recipe
        section = {"sft_model": recipe.sft, "reward_model": recipe.reward}.get(cell.asset, recipe.align)
        if cell.asset == "aligned_model" and self._recipe.align.declared.learns_from != "pairs":
            return None  # what a model samples takes other times
        counts = self.record(LEARNS_FROM[cell.asset], self._recipe.name).get("counts")
        parameters = self._parameters()
        return counts["kept"] * section.epochs * parameters if counts and parameters else None

    def _scored(self, cell: Cell) -> float | None:
        """The weights of all scored models times the items of all exams."""
        metrics = self.record("benchmark_index", self._recipe.name).get("metrics", {})
        items = [metrics.get(f"items_{suite.name}") for suite in self._recipe.evaluation.suites]
        parameters = self._parameters()
        models = 1 + sum(asks_for(self._recipe, data) for data in ("sft.data", "preferences.data"))
        return sum(items) * models * parameters if parameters and None not in items else None

    def _answered(self, cell: Cell) -> float | None:
        """The weights of the model times the most tokens of the answers to held-out prompts, by two models."""
        metrics = self.record("preference_data", self._recipe.name).get("metrics", {})
        held_out, parameters = metrics.get("held_out_pairs"), self._parameters()
        if held_out is None or not parameters:
            return None
        return 2 * min(JUDGED_PROMPTS, held_out) * self._recipe.align.max_new_tokens * parameters

    def _parameters(self) -> float | None:
        if asks_for(self._recipe, "snapshots"):
            return self._recipe.model.shape(vocab_size=self._recipe.tokenizer.vocabulary).parameter_count
        return self.record("adopted_model", self._recipe.name).get("metrics", {}).get("parameters")

    def record(self, asset: str, partition: str) -> Mapping[str, Any]:
        """Return the record of the artifact to which a partition points; empty as long as there is none."""
        if (asset, partition) not in self._records:
            place = self.folder(asset, partition)
            try:
                record = json.loads(regular_bytes(place / artifact.ARTIFACT_FILE)) if place else None
            except (OSError, ValueError):
                return {}  # `compare` reports damage
            if not isinstance(record, dict):
                return {}
            self._records[asset, partition] = record
        return self._records[asset, partition]

    def folder(self, asset: str, partition: str) -> Path | None:
        """Return the folder of the artifact to which a partition points; None as long as there is none."""
        try:
            reference = read_reference(self._root, asset, partition)
        except (Damaged, OSError, ValueError):
            return None
        return self._root / asset / reference.fingerprint if reference else None


UNITS: dict[str, Callable[[FirstRun, Cell], float | None]] = {
    "pages": FirstRun._pages,
    "flop": FirstRun._flop,
    "weights_times_examples": FirstRun._tuned,
    "weights_times_items": FirstRun._scored,
    "weights_times_answers": FirstRun._answered,
}
